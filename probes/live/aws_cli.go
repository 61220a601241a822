package live

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
)

// printed is a value of the SDK as the AWS CLI prints it: without what is not
// set, times in RFC 3339. EC2's and IAM's members have the SDK's names.
func printed(v any) any { return reshape(v, nil) }

// printedEKS is a value of EKS, whose members start with a small letter.
func printedEKS(v any) any {
	return reshape(v, func(key string, value any) (string, any) {
		return strings.ToLower(key[:1]) + key[1:], value
	})
}

// printedIAM is a value of IAM, whose policies are URL-encoded text in the API
// and objects in the CLI.
func printedIAM(v any) any {
	return reshape(v, func(key string, value any) (string, any) {
		text, ok := value.(string)
		if !ok || !slices.Contains([]string{"AssumeRolePolicyDocument", "PolicyDocument", "Document"}, key) {
			return key, value
		}
		if decoded, err := url.PathUnescape(text); err == nil {
			text = decoded
		}
		if policy, err := decode([]byte(text)); err == nil {
			return key, policy
		}
		return key, value
	})
}

// reshape turns a value of the SDK into what json.Marshal gives for it, without
// members that are not set, each member changed by change.
func reshape(v any, change func(string, any) (string, any)) any {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // the SDK's types are plain data
	}
	tree, err := decode(data)
	if err != nil {
		panic(err) // it was just written
	}
	return prune(tree, change)
}

func decode(data []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var tree any
	err := decoder.Decode(&tree)
	return tree, err
}

// userKeys are members whose keys are the user's own words.
var userKeys = []string{"Tags", "Labels", "Overrides"}

// mayBeEmpty are members whose empty text says something; any other is a value
// of an enumeration that is not set.
var mayBeEmpty = []string{"Value", "Description", "Key", "GroupName", "PublicDnsName", "StateTransitionReason"}

func prune(tree any, change func(string, any) (string, any)) any {
	switch t := tree.(type) {
	case map[string]any:
		out := make(map[string]any, len(t))
		for key, value := range t {
			if value == nil || value == "" && !slices.Contains(mayBeEmpty, key) || key == "ResultMetadata" {
				continue
			}
			if _, isMap := value.(map[string]any); !isMap || !slices.Contains(userKeys, key) {
				value = prune(value, change)
			}
			if change != nil {
				key, value = change(key, value)
			}
			out[key] = value
		}
		return out
	case []any:
		for i := range t {
			t[i] = prune(t[i], change)
		}
	}
	return tree
}

// printedList is what the CLI prints with one list of a kind, never null.
func printedList[T any](key string, items []T, shape func(any) any) map[string]any {
	if items == nil {
		items = []T{}
	}
	return map[string]any{key: shape(items)}
}

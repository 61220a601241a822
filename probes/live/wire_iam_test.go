package live

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// paged is a page of a list, from the marker of the request on.
func (w *wire) paged(form url.Values, key string, items []any) map[string]any {
	start, _ := strconv.Atoi(form.Get("Marker"))
	end := min(len(items), start+w.pageSize)
	page := map[string]any{key: append([]any{}, items[start:end]...), "IsTruncated": end < len(items)}
	if end < len(items) {
		page["Marker"] = strconv.Itoa(end)
	}
	return page
}

// serveIAM answers from the account's listing: single roles and policies.
func (w *wire) serveIAM(out http.ResponseWriter, operation string, form url.Values) {
	action := "iam:" + operation
	result, f := map[string]any{}, w.fault(action)
	roles, held := w.items("iam/get-account-authorization-details", "RoleDetailList")
	policies, _ := w.items("iam/get-account-authorization-details", "Policies")
	find := func(all []any, key, name string) map[string]any {
		for _, v := range all {
			if m := v.(map[string]any); m[key] == name {
				return m
			}
		}
		return nil
	}
	role := find(roles, "RoleName", form.Get("RoleName"))
	missing := &fault{http.StatusNotFound, noSuch, "The role with name " + form.Get("RoleName") + " cannot be found."}
	switch {
	case f != nil:
	case operation == "ListOpenIDConnectProviders":
		providers, ok := w.items("iam/list-open-id-connect-providers", "OpenIDConnectProviderList")
		if result["OpenIDConnectProviderList"] = append([]any{}, providers...); !ok {
			f = refusal(action)
		}
	case !held:
		f = refusal(action)
	case operation == "GetPolicy" || operation == "GetPolicyVersion":
		p := find(policies, "Arn", form.Get("PolicyArn"))
		if p == nil {
			f = missing
			break
		}
		versions := p["PolicyVersionList"].([]any)
		version := versions[0].(map[string]any)
		for _, v := range versions {
			if m := v.(map[string]any); m["IsDefaultVersion"] == true {
				version = m
			}
		}
		result["Policy"] = map[string]any{"Arn": p["Arn"], "PolicyName": p["PolicyName"], "DefaultVersionId": version["VersionId"]}
		if operation == "GetPolicyVersion" {
			result = map[string]any{"PolicyVersion": encodedPolicies(version)}
		}
	case operation == "SimulatePrincipalPolicy" && !w.scp:
		f = refusal(action)
	case operation == "SimulatePrincipalPolicy":
		result["IsTruncated"] = false
		result["EvaluationResults"] = []any{map[string]any{
			"EvalActionName": form.Get("ActionNames.member.1"), "EvalResourceName": form.Get("ResourceArns.member.1"), "EvalDecision": "implicitDeny",
			"OrganizationsDecisionDetail": map[string]any{"AllowedByOrganizations": false},
		}}
	case operation == "ListRoles":
		var all []any
		for _, r := range roles {
			r := r.(map[string]any)
			all = append(all, encodedPolicies(map[string]any{"RoleName": r["RoleName"], "Arn": r["Arn"], "Path": r["Path"], "AssumeRolePolicyDocument": r["AssumeRolePolicyDocument"]}))
		}
		result = w.paged(form, "Roles", all)
	case role == nil:
		f = missing
	case operation == "GetRole":
		shown := map[string]any{}
		for _, key := range []string{"RoleName", "Arn", "Path", "RoleId", "CreateDate", "AssumeRolePolicyDocument", "PermissionsBoundary", "Tags"} {
			if role[key] != nil {
				shown[key] = role[key]
			}
		}
		result["Role"] = encodedPolicies(shown)
	case operation == "ListAttachedRolePolicies":
		attached, _ := role["AttachedManagedPolicies"].([]any)
		result = w.paged(form, "AttachedPolicies", attached)
	case operation == "ListRolePolicies":
		var names []any
		inline, _ := role["RolePolicyList"].([]any)
		for _, p := range inline {
			names = append(names, p.(map[string]any)["PolicyName"])
		}
		result = w.paged(form, "PolicyNames", names)
	case operation == "GetRolePolicy":
		inline, _ := role["RolePolicyList"].([]any)
		p := find(inline, "PolicyName", form.Get("PolicyName"))
		result = encodedPolicies(map[string]any{"RoleName": role["RoleName"], "PolicyName": p["PolicyName"], "PolicyDocument": p["PolicyDocument"]})
	default:
		w.t.Errorf("IAM is asked for %s", operation)
	}
	w.answer(out, "iam", operation, result, f)
}

// encodedPolicies are policies as IAM sends them: URL-encoded text.
func encodedPolicies(v map[string]any) map[string]any {
	shown := map[string]any{}
	for key, value := range v {
		if _, ok := value.(map[string]any); ok && strings.HasSuffix(key, "Document") {
			text, err := json.Marshal(value)
			must(err)
			value = strings.ReplaceAll(url.QueryEscape(string(text)), "+", "%20")
		}
		shown[key] = value
	}
	return shown
}

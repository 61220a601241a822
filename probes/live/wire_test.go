package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pposiraegi/ppodoctor/probes"
)

// A wire is AWS on the loopback interface: it speaks the real protocols (EC2
// and IAM query, EKS REST, STS) from the documents of a snapshot. What the
// snapshot doesn't hold, it refuses.
type wire struct {
	t        *testing.T
	src      *probes.Snapshot
	pageSize int
	mu       sync.Mutex
	deny     map[string]bool // "ec2:DescribeInstances"
	throttle map[string]int  // how many requests of an action are throttled first
	calls    map[string]int  // that were answered
	account  string
	scp      bool // an organization's policy allows nothing, and the simulator says so
	expired  bool // the token of whoever asks
}

// startWire starts the server, and sets the environment so that the SDK finds
// it and credentials, as the AWS CLI would.
func startWire(t *testing.T, src *probes.Snapshot) *wire {
	w := &wire{t: t, src: src, pageSize: 1000, deny: map[string]bool{}, throttle: map[string]int{}, calls: map[string]int{}, account: "111122223333"}
	if src.Meta.Account != "" {
		w.account = src.Meta.Account
	}
	server := httptest.NewServer(w)
	t.Cleanup(server.Close)
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL": server.URL, "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "example", "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_CONFIG_FILE": t.TempDir() + "/config", "AWS_SHARED_CREDENTIALS_FILE": t.TempDir() + "/credentials", "AWS_PROFILE": "", "AWS_REGION": "", "AWS_DEFAULT_REGION": "",
	} {
		t.Setenv(name, value)
	}
	return w
}

// values are the JSON values of a document of the snapshot, and whether it has them.
func (w *wire) values(path string) ([]map[string]any, bool) {
	body, err := w.src.Open(context.Background(), probes.Document{Path: "aws/" + path})
	if err != nil {
		return nil, false
	}
	decoder := json.NewDecoder(body)
	decoder.UseNumber()
	var all []map[string]any
	for {
		var v map[string]any
		if err := decoder.Decode(&v); errors.Is(err, io.EOF) {
			return all, true
		} else if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, v)
	}
}

// items are those of the lists that a document has under a key.
func (w *wire) items(path, key string) ([]any, bool) {
	values, ok := w.values(path)
	var all []any
	for _, v := range values {
		some, _ := v[key].([]any)
		all = append(all, some...)
	}
	return all, ok
}

// A fault is an answer that is none.
type fault struct {
	status        int
	code, message string
}

func (w *wire) fault(action string) *fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.expired && strings.HasPrefix(action, "ec2:"):
		return &fault{http.StatusBadRequest, "RequestExpired", "Request has expired."}
	case w.expired:
		return &fault{http.StatusForbidden, "ExpiredToken", "The security token included in the request is expired"}
	case w.throttle[action] > 0:
		w.throttle[action]--
		return &fault{http.StatusServiceUnavailable, "Throttling", "Rate exceeded"}
	case w.deny[action]:
		return refusal(action)
	}
	w.calls[action]++
	return nil
}

func refusal(action string) *fault {
	code := "AccessDenied"
	if strings.HasPrefix(action, "ec2:") {
		code = "UnauthorizedOperation"
	} else if strings.HasPrefix(action, "eks:") {
		code = "AccessDeniedException"
	}
	return &fault{http.StatusForbidden, code, "not authorized to perform: " + action}
}

func (w *wire) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		w.serveEKS(out, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	form, err := url.ParseQuery(string(body))
	if err != nil {
		w.t.Errorf("a request that is no form: %v", err)
	}
	operation := form.Get("Action")
	switch form.Get("Version") {
	case "2016-11-15":
		w.serveEC2(out, operation, form)
	case "2010-05-08":
		w.serveIAM(out, operation, form)
	case "2011-06-15":
		w.answer(out, "sts", operation, map[string]any{"Account": w.account, "Arn": "arn:aws:iam::" + w.account + ":user/reader", "UserId": "AIDAEXAMPLE"}, w.fault("sts:"+operation))
	default:
		w.t.Errorf("a request of no service that is known: %s", body)
	}
}

// ec2Lists are the documents of EC2's operations: path, key, the member that
// an id filter compares.
var ec2Lists = map[string][3]string{
	"DescribeInstances":          {"ec2/describe-instances", "Reservations", "InstanceId"},
	"DescribeNetworkInterfaces":  {"ec2/describe-network-interfaces", "NetworkInterfaces", "NetworkInterfaceId"},
	"DescribeSecurityGroups":     {"ec2/describe-security-groups", "SecurityGroups", "GroupId"},
	"DescribeSubnets":            {"ec2/describe-subnets", "Subnets", "SubnetId"},
	"DescribeNetworkAcls":        {"ec2/describe-network-acls", "NetworkAcls", "NetworkAclId"},
	"DescribeRouteTables":        {"ec2/describe-route-tables", "RouteTables", "RouteTableId"},
	"DescribeVpcEndpoints":       {"ec2/describe-vpc-endpoints", "VpcEndpoints", "VpcEndpointId"},
	"DescribePrefixLists":        {"ec2/describe-prefix-lists", "PrefixLists", "PrefixListId"},
	"DescribeManagedPrefixLists": {"ec2/describe-managed-prefix-lists", "PrefixLists", "PrefixListId"},
	"DescribeImages":             {"ec2/describe-images", "Images", "ImageId"},
}

func (w *wire) serveEC2(out http.ResponseWriter, operation string, form url.Values) {
	action := "ec2:" + operation
	f := w.fault(action)
	of, known := ec2Lists[operation]
	items, held := w.items(of[0], of[1])
	if f == nil && (!known || !held) {
		f = refusal(action)
	}
	if f != nil {
		out.WriteHeader(f.status)
		fmt.Fprintf(out, "<Response><Errors><Error><Code>%s</Code><Message>%s</Message></Error></Errors><RequestID>1</RequestID></Response>", f.code, f.message)
		return
	}
	for n := 1; form.Get(fmt.Sprintf("Filter.%d.Name", n)) != ""; n++ {
		name := form.Get(fmt.Sprintf("Filter.%d.Name", n))
		member := of[2]
		if name == "vpc-id" {
			member = "VpcId"
		} else if !strings.HasSuffix(name, "-id") {
			w.t.Errorf("%s: filter %s", operation, name)
		}
		var values []string
		for m := 1; form.Has(fmt.Sprintf("Filter.%d.Value.%d", n, m)); m++ {
			values = append(values, form.Get(fmt.Sprintf("Filter.%d.Value.%d", n, m)))
		}
		items = slices.DeleteFunc(slices.Clone(items), func(item any) bool { return !has(item, member, values) })
	}
	start, _ := strconv.Atoi(form.Get("NextToken"))
	end := min(len(items), start+w.pageSize)
	page := map[string]any{of[1]: items[start:end]}
	if items == nil {
		page[of[1]] = []any{}
	}
	if end < len(items) {
		page["NextToken"] = strconv.Itoa(end)
	}
	fmt.Fprintf(out, "<%sResponse><requestId>1</requestId>%s</%sResponse>", operation, ec2XML(w.t, operation+"Output", page), operation)
}

// has is whether an item, or an instance of a reservation, has one of the
// values as a member. A hand-made document may leave the VPC out.
func has(item any, member string, values []string) bool {
	m, _ := item.(map[string]any)
	if instances, ok := m["Instances"].([]any); ok {
		return slices.ContainsFunc(instances, func(i any) bool { return has(i, member, values) })
	}
	v, ok := m[member].(string)
	return slices.Contains(values, v) || !ok && member == "VpcId"
}

// answer writes what IAM or STS answers.
func (w *wire) answer(out http.ResponseWriter, service, operation string, result map[string]any, f *fault) {
	if f != nil {
		out.WriteHeader(f.status)
		fmt.Fprintf(out, "<ErrorResponse><Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error><RequestId>1</RequestId></ErrorResponse>", f.code, f.message)
		return
	}
	fmt.Fprintf(out, "<%[1]sResponse><%[1]sResult>%[2]s</%[1]sResult><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></%[1]sResponse>", operation, queryXML(result))
}

func (w *wire) serveEKS(out http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/clusters/"), "/")
	for i := range parts {
		parts[i], _ = url.PathUnescape(parts[i])
	}
	kind := [...]string{"", "ListX", "DescribeX"}[len(parts)-1]
	names := map[string][4]string{ // path of the list, its key, path of the single ones, their key
		"access-entries":            {"eks/list-access-entries", "accessEntries", "eks/describe-access-entry", "accessEntry"},
		"pod-identity-associations": {"eks/list-pod-identity-associations", "associations", "eks/describe-pod-identity-association", "association"},
		"node-groups":               {"eks/list-nodegroups", "nodegroups", "eks/describe-nodegroup", "nodegroup"},
		"addons":                    {"eks/list-addons", "addons", "eks/describe-addon", "addon"},
	}
	ids := map[string]string{"access-entries": "principalArn", "pod-identity-associations": "associationId", "node-groups": "nodegroupName", "addons": "addonName"}
	action, answer, held := "eks:DescribeCluster", map[string]any{}, false
	if kind == "" {
		all, _ := w.values("eks/describe-cluster")
		for _, v := range all {
			if c, ok := v["cluster"].(map[string]any); ok && c["name"] == parts[0] {
				answer, held = map[string]any{"cluster": epochs(c)}, true
			}
		}
	} else {
		of := names[parts[1]]
		single, described := w.values(of[2])
		listed, isListed := w.items(of[0], of[1])
		action = "eks:" + map[string]string{"access-entries": "AccessEntr", "pod-identity-associations": "PodIdentityAssociation", "node-groups": "Nodegroup", "addons": "Addon"}[parts[1]]
		if kind == "ListX" {
			if action = strings.Replace(action, "eks:", "eks:List", 1) + "s"; parts[1] == "access-entries" {
				action = "eks:ListAccessEntries"
			}
			if held = isListed || described; !isListed {
				for _, v := range single {
					one := v[of[3]].(map[string]any)
					if parts[1] == "pod-identity-associations" {
						listed = append(listed, one)
					} else {
						listed = append(listed, one[ids[parts[1]]])
					}
				}
			}
			start, _ := strconv.Atoi(r.URL.Query().Get("nextToken"))
			end := min(len(listed), start+w.pageSize)
			answer[of[1]] = epochs(append([]any{}, listed[start:end]...))
			if end < len(listed) {
				answer["nextToken"] = strconv.Itoa(end)
			}
		} else {
			if action = strings.Replace(action, "eks:", "eks:Describe", 1); parts[1] == "access-entries" {
				action += "y"
			}
			for _, v := range single {
				if one := v[of[3]].(map[string]any); one[ids[parts[1]]] == parts[2] {
					answer, held = map[string]any{of[3]: epochs(one)}, true
				}
			}
		}
	}
	f := w.fault(action)
	if f == nil && !held {
		f = refusal(action)
	}
	if f != nil {
		out.Header().Set("X-Amzn-ErrorType", f.code)
		out.WriteHeader(f.status)
		answer = map[string]any{"message": f.message}
	}
	if err := json.NewEncoder(out).Encode(answer); err != nil {
		w.t.Error(err)
	}
}

// epochs are EKS's times on the wire: seconds since 1970.
func epochs(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, value := range v {
			if text, ok := value.(string); ok && strings.HasSuffix(key, "At") {
				if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
					out[key] = float64(at.UnixMilli()) / 1000
					continue
				}
			}
			out[key] = epochs(value)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = epochs(v[i])
		}
		return out
	}
	return v
}

package probes

import (
	"strings"
	"testing"
)

func TestRedactedText(t *testing.T) {
	jwt := "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
	for _, test := range []struct{ text, secret string }{
		{"Authorization: Bearer " + jwt, jwt},
		{"Authorization: Bearer 0123456789abcdef0123", "0123456789abcdef0123"},
		{"key AKIAIOSFODNN7EXAMPLE is used", "AKIAIOSFODNN7EXAMPLE"},
		{"connecting to postgres://app:hunter22@db.shop.svc:5432/app?sslmode=off", "hunter22"},
		{"java -Ddb.password=hunter22 -jar app.jar", "hunter22"},
		{"aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI/K7MDENG"},
		{`{"level":"info","password":"hunter22"}`, "hunter22"},
		{`msg="{\"apiKey\": \"hunter22\"}"`, "hunter22"},
		{"-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA"},
		{"GET https://s3.eu-west-1.amazonaws.com/b?X-Amz-Signature=abcdef0123", "abcdef0123"},
		{"remote: ghp_0123456789012345678901234567890123456", "ghp_0123456789012345678901234567890123456"},
		{"post https://hooks.slack.com/services/T000/B000/XXXX failed", "T000/B000/XXXX"},
	} {
		got := string(NewRedactor([]byte("k")).Text([]byte(test.text)))
		if strings.Contains(got, test.secret) || !strings.Contains(got, tokenPrefix) {
			t.Errorf("%q still holds %q: %q", test.text, test.secret, got)
		}
	}
}

// What a diagnosis rests on must survive.
func TestRedactionLeavesMessages(t *testing.T) {
	for _, text := range []string{
		"ERROR token: expired, log in again",
		"password authentication failed for user app",
		`level=error msg="failed to fetch token" error="AccessDenied: not authorized to perform: sts:AssumeRoleWithWebIdentity"`,
		"secret \"db-credentials\" not found",
		"couldn't find key password in Secret shop/db",
		"dial tcp: lookup redis.shop.svc.cluster.local on 172.20.0.10:53: no such host",
		"WebIdentityErr: failed to retrieve credentials\ncaused by: ExpiredToken",
		"--token-file=/var/run/secrets/token --password=$(DB_PASSWORD)",
	} {
		if got := string(NewRedactor([]byte("k")).Text([]byte(text))); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestRedactedVariables(t *testing.T) {
	for _, test := range []struct {
		name, value string
		stays       bool
	}{
		{"ENABLE_POD_ENI", "true", true},
		{"WARM_IP_TARGET", "5", true},
		{"AWS_REGION", "eu-west-1", true},
		{"AWS_ROLE_ARN", "arn:aws:iam::111122223333:role/app", true},
		{"AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/eks.amazonaws.com/serviceaccount/token", true},
		{"POD_SECURITY_GROUP_ENFORCING_MODE", "standard", true},
		{"REDIS_HOST", "redis-master", true},
		{"DB", "db.shop.svc.cluster.local:5432", true},
		{"GOMEMLIMIT", "512MiB", true},
		{"JAVA_OPTS", "-Xmx3g -XX:MaxRAMPercentage=75.0", true},
		{"NODE_OPTIONS", "--max-old-space-size=4096", true},
		{"GREETING", "hello", false},
		{"DB_PASSWORD", "hunter2", false},
		{"SIGNING_KEY", "abc", false},
		{"API_TOKEN", "/not/a/file", false},
		{"DATABASE_URL", "postgres://app:hunter22@db:5432/app", false},
		{"PIN_CODE", "correct horse battery", false},
	} {
		got := NewRedactor([]byte("k")).variableValue(test.name, test.value)
		if stays := got == test.value; stays != test.stays {
			t.Errorf("%s=%s became %s", test.name, test.value, got)
		}
	}
	if got := NewRedactor([]byte("k")).variableValue("DATABASE_URL", "postgres://app:hunter22@db:5432/app"); !strings.Contains(got, "@db:5432/") {
		t.Errorf("a URL's host is lost: %s", got)
	}
}

func TestRedactedObject(t *testing.T) {
	r := NewRedactor([]byte("k"))
	raw := `{"kind":"Pod","metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"spec\":{\"containers\":[{\"env\":[{\"name\":\"P\",\"value\":\"s3cretvalue\"}]}]}}"}},
"spec":{"containers":[{"name":"a","env":[{"name":"DB_PASSWORD","value":"s3cretvalue"},{"name":"FROM","valueFrom":{"secretKeyRef":{"name":"db","key":"password"}}}],"args":["--db-password","s3cretvalue","--port=80"]}]}}`
	got, err := r.Object([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(got), "s3cretvalue") {
		t.Errorf("a value is left: %s", got)
	}
	if n := strings.Count(string(got), r.token("s3cretvalue")); n != 3 {
		t.Errorf("the same value is the same token %d times, not 3: %s", n, got)
	}
	for _, kept := range []string{"DB_PASSWORD", `"key":"password"`, "--port=80"} {
		if !strings.Contains(string(got), kept) {
			t.Errorf("%s is lost: %s", kept, got)
		}
	}
	if line := r.Known().Replace("logging in with s3cretvalue"); strings.Contains(line, "s3cretvalue") {
		t.Errorf("a known secret is left in a log: %s", line)
	}
	cm, err := r.Object([]byte(`{"kind":"ConfigMap","data":{"app.yaml":"db:\n  host: db.shop\n  password: \"s3cretvalue\"\n  passwordFrom: vault\n","smtp.password":"another1"}}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{"s3cretvalue", "another1"} {
		if strings.Contains(string(cm), gone) {
			t.Errorf("%s is left: %s", gone, cm)
		}
	}
	if !strings.Contains(string(cm), "host: db.shop") || !strings.Contains(string(cm), "passwordFrom: vault") {
		t.Errorf("too much is gone: %s", cm)
	}
	secret, err := r.Object([]byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"db","namespace":"shop"},"type":"Opaque","data":{"password":"aHVudGVyMjI="}}`))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(secret), "aHVudGVyMjI") || !strings.Contains(string(secret), `"password":8`) {
		t.Errorf("a Secret is not slim: %s", secret)
	}
}

// FuzzRedact: whatever is captured, redaction neither fails nor makes
// something that is no JSON.
func FuzzRedact(f *testing.F) {
	f.Add(`{"env":[{"name":"A","value":"b"}]}`)
	f.Add(`{"args":["--password","x"],"data":{"a":"password: y\n"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		r := NewRedactor([]byte("k"))
		r.Text([]byte(text))
		if out, err := r.Object([]byte(text)); err == nil {
			if again, err := r.Object(out); err != nil {
				t.Errorf("%s: %v", again, err)
			}
		}
	})
}

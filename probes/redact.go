package probes

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// A Redactor replaces secrets in what is captured: values of environment
// variables, values of Secrets, and what looks like a credential in any other
// text. Names of keys stay. The same secret becomes the same token everywhere,
// and the tokens of two redactors with different keys can't be compared.
type Redactor struct {
	key    []byte
	mu     sync.Mutex
	tokens map[string]string // by secret: those that are secret wherever they stand
}

// NewRedactor is a redactor whose tokens depend on key.
func NewRedactor(key []byte) *Redactor { return &Redactor{key: key, tokens: map[string]string{}} }

func (r *Redactor) token(secret string) string {
	if strings.HasPrefix(secret, tokenPrefix) {
		return secret
	}
	mac := hmac.New(sha256.New, r.key)
	mac.Write([]byte(secret))
	return tokenPrefix + hex.EncodeToString(mac.Sum(nil)[:5])
}

const tokenPrefix = "REDACTED-"

// secret is the token of something that is secret wherever it stands, so that
// [Redactor.Known] finds it again.
func (r *Redactor) secret(s string) string {
	token := r.token(s)
	if len(s) >= 8 && token != s {
		r.mu.Lock()
		r.tokens[s] = token
		r.mu.Unlock()
	}
	return token
}

// Known replaces, in text of any kind, the secrets that were met so far.
func (r *Redactor) Known() *strings.Replacer {
	r.mu.Lock()
	defer r.mu.Unlock()
	var pairs []string
	for s, token := range r.tokens {
		pairs = append(pairs, s, token)
		if quoted, err := json.Marshal(s); err == nil && string(quoted[1:len(quoted)-1]) != s {
			pairs = append(pairs, string(quoted[1:len(quoted)-1]), token)
		}
	}
	return strings.NewReplacer(pairs...)
}

// Object redacts one JSON value: a Kubernetes object, or what AWS answered.
func (r *Redactor) Object(raw []byte) ([]byte, error) {
	var value any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	if object, ok := value.(map[string]any); ok && object["kind"] == "Secret" {
		slim := slimSecret(raw)
		if slim == nil {
			return []byte("{}"), nil
		}
		return slim, nil
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(r.value("", value))
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

// value redacts what stands under a key.
func (r *Redactor) value(key string, value any) any {
	switch v := value.(type) {
	case string:
		return r.text(key, v)
	case map[string]any:
		if key == "managedFields" || key == "fieldsV1" {
			return v
		}
		for k, inner := range v {
			if k == "secretKey" && v["remoteRef"] != nil {
				continue // of an ExternalSecret: the name of a key
			}
			v[k] = r.value(k, inner)
		}
		return v
	case []any:
		switch key {
		case "managedFields":
			return v
		case "env":
			for _, item := range v {
				r.variable(item)
			}
			return v
		case "args", "command":
			r.arguments(v)
		}
		for i := range v {
			v[i] = r.value("", v[i])
		}
		return v
	}
	return value
}

func (r *Redactor) text(key, s string) string {
	switch {
	case s == "":
		return s
	case key == corev1.LastAppliedConfigAnnotation:
		if object, err := r.Object([]byte(s)); err == nil {
			return string(object)
		}
	case strings.EqualFold(key, "userData"):
		// Nodes are told by it how to join; a launch template has it in base64.
		if plain, err := base64.StdEncoding.DecodeString(s); err == nil {
			return base64.StdEncoding.EncodeToString(r.Text(plain))
		}
	case namesSecret(key) && !reference.MatchString(s):
		return r.secret(s)
	}
	return string(yamlSecret.replace(r, string(r.Text([]byte(s)))))
}

// variable redacts the value of an environment variable.
func (r *Redactor) variable(item any) {
	v, ok := item.(map[string]any)
	if !ok {
		return
	}
	name, _ := v["name"].(string)
	if value, ok := v["value"].(string); ok {
		v["value"] = r.variableValue(name, value)
	}
}

// arguments redacts the argument that follows a flag such as --password.
func (r *Redactor) arguments(args []any) {
	for i := 1; i < len(args); i++ {
		flag, _ := args[i-1].(string)
		value, ok := args[i].(string)
		if ok && strings.HasPrefix(flag, "-") && !strings.Contains(flag, "=") && namesSecret(flag) && !strings.HasPrefix(value, "-") && !reference.MatchString(value) {
			args[i] = r.secret(value)
		}
	}
}

// secretWords end the names of things that are secret.
const secretWords = `password|passwd|pwd|passphrase|secret[_-]?key|secret[_-]?access[_-]?key|client[_-]?secret|api[_-]?key|access[_-]?key|private[_-]?key|encryption[_-]?key|auth[_-]?token|access[_-]?token|refresh[_-]?token|session[_-]?token|bearer[_-]?token|api[_-]?token|credentials?|connection[_-]?string`

var (
	secretName = regexp.MustCompile(`(?i)(?:` + secretWords + `|token|dsn)$`)
	// reference is a text that stands for a secret and is none: a variable, a
	// template, a path, a yes or no.
	reference = regexp.MustCompile(`^(?:\$[({].*|\{\{.*|/[\w./-]+|(?i:true|false|yes|no|none|null)|\*+)$`)
)

func namesSecret(key string) bool { return key != "" && secretName.MatchString(key) }

// A secretForm is one look that credentials have in text.
type secretForm struct {
	pattern *regexp.Regexp // the last group is the secret
	hints   []string       // in lower case: without one of them, nothing can match
}

// secretForms are the credentials that are known by their look. A message
// such as "token: expired" must survive: it is what a diagnosis rests on.
// Sources: RFC 7519 (JWT), RFC 7468 (PEM), the AWS IAM reference on unique
// identifiers, AWS Signature Version 4 query parameters, GitHub's, GitLab's
// and Slack's pages on token formats.
var secretForms = []secretForm{
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----(.*?)(?:-----END|$)`), []string{"private key-----"}},
	{regexp.MustCompile(`\b(eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*)`), []string{"eyj"}},
	{regexp.MustCompile(`\b((?:AKIA|ASIA)[A-Z0-9]{16})\b`), []string{"akia", "asia"}},
	{regexp.MustCompile(`(?i)\b(?:bearer|basic)\s+([A-Za-z0-9._~+/=-]{16,})`), []string{"bearer", "basic"}},
	{regexp.MustCompile(`[a-zA-Z][a-zA-Z0-9+.-]*://[^\s:/@"'\\]*:([^\s/@"'\\]+)@`), []string{"://"}},
	{regexp.MustCompile(`(?i)(?:` + secretWords + `)\\?["']?\s*=\s*\\?["']?([^\s&;,"'\\]{3,})`), []string{"="}},
	{regexp.MustCompile(`(?i)(?:` + secretWords + `|token)\\?"\s*:\s*\\?"([^"\\]{3,})`), []string{`"`}},
	{regexp.MustCompile(`(?i)\btoken=([A-Za-z0-9._~+/=-]{16,})`), []string{"token="}},
	{regexp.MustCompile(`(?i)X-Amz-(?:Signature|Security-Token|Credential)=([^&\s"'\\]+)`), []string{"x-amz-"}},
	{regexp.MustCompile(`\b(gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,})`), []string{"gh", "glpat-", "xox"}},
	{regexp.MustCompile(`hooks\.slack\.com/services/([A-Za-z0-9/]+)`), []string{"hooks.slack.com"}},
}

// yamlSecret is a secret in a file that a ConfigMap or a chart's values hold.
var yamlSecret = secretForm{
	regexp.MustCompile(`(?im)^[ \t-]*"?[\w.-]*(?:` + secretWords + `|token)"?[ \t]*:[ \t]+["']?([^\s"'#|>{&*][^\n"']*)`), []string{"\n", ": "},
}

// Text redacts what looks like a credential in a log or any other text.
func (r *Redactor) Text(text []byte) []byte {
	s := string(text)
	lower := strings.ToLower(s)
	for _, form := range secretForms {
		if slices.ContainsFunc(form.hints, func(h string) bool { return strings.Contains(lower, h) }) {
			s = form.replace(r, s)
		}
	}
	return []byte(s)
}

func (f secretForm) replace(r *Redactor, s string) string {
	var out strings.Builder
	last := 0
	for _, m := range f.pattern.FindAllStringSubmatchIndex(s, -1) {
		from, to := m[len(m)-2], m[len(m)-1]
		if from < last || reference.MatchString(s[from:to]) {
			continue
		}
		out.WriteString(s[last:from])
		out.WriteString(r.secret(s[from:to]))
		last = to
	}
	if last == 0 {
		return s
	}
	out.WriteString(s[last:])
	return out.String()
}

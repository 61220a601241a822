package diagnose

import (
	"regexp"
	"strings"
)

// Addresses are also written as pairs of a key and a value: in DSNs
// ("host=pg port=5432 user=app", "Server=db;Port=3306;"), in properties and in
// JSON and YAML with the port beside the host.
var (
	hostPairs = regexp.MustCompile(`(?i)(^|[\s,;{"'(\x60])([\w.-]*?)(host(?:name)?|server|addr(?:ess)?)["']?\s*[:=]\s*["']?([a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)["']?(?:[\s,;})\x60]|$)`)
	portPairs = regexp.MustCompile(`(?i)(?:^|[\s,;{"'(\x60])([\w.-]*?)port["']?\s*[:=]\s*["']?(\d{2,5})\b`)
	postgres  = regexp.MustCompile(`(?i)\b(?:user(?:name)?|dbname|database)\s*=`)
	mysql     = regexp.MustCompile(`(?i)\b(?:uid|user id)\s*=`)
	// secretPair finds the secrets in such a text.
	secretPair = regexp.MustCompile(`(?i)((?:pass(?:word)?|pwd|secret|token|api_?key)["']?\s*[:=]\s*)["']?[^\s;,"']+`)
)

// defaultPorts are those of URLs that name none.
var defaultPorts = map[string]string{
	"http": "80", "https": "443", "postgres": "5432", "postgresql": "5432", "mysql": "3306", "mariadb": "3306",
	"redis": "6379", "rediss": "6379", "amqp": "5672", "amqps": "5671", "mongodb": "27017", "nats": "4222",
}

// pairMentions are the addresses that a text gives as pairs; m is what they
// have in common.
func pairMentions(text string, m mention) []mention {
	if len(text) > 64<<10 {
		return nil
	}
	var list []mention
	for _, at := range hostPairs.FindAllStringSubmatchIndex(text, 200) {
		prefix, key, host := text[at[4]:at[5]], text[at[6]:at[7]], strings.ToLower(text[at[8]:at[9]])
		if !hostName.MatchString(host) || host == "localhost" || host == "true" || host == "false" {
			continue
		}
		one := m
		one.host, one.port = host, portBeside(text, prefix, at[6], at[9])
		one.value = strings.TrimSpace(prefix + key + "=" + host)
		if one.port != "" {
			one.value += ", port=" + one.port
		}
		list = append(list, one)
	}
	return list
}

// portBeside is the port of the block in which a host stands: up to the end of
// its braces, its paragraph or its DSN.
func portBeside(text, prefix string, from, to int) string {
	after := text[to:min(len(text), to+160)]
	if i := strings.IndexAny(after, "}"); i >= 0 {
		after = after[:i]
	}
	before := text[max(0, from-160):from]
	if i := strings.LastIndexAny(before, "{}"); i >= 0 {
		before = before[i:]
	}
	after, _, _ = strings.Cut(after, "\n\n")
	for _, part := range []string{after, before} {
		for _, p := range portPairs.FindAllStringSubmatch(part, -1) {
			if strings.EqualFold(p[1], prefix) {
				return p[2]
			}
		}
	}
	line := before[strings.LastIndexByte(before, '\n')+1:] + after
	line, _, _ = strings.Cut(line, "\n")
	switch {
	case mysql.MatchString(line):
		return "3306"
	case postgres.MatchString(line):
		return "5432"
	}
	return ""
}

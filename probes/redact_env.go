package probes

import (
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// Values of environment variables are secret unless they can't be: a number,
// a switch, an address, an AWS identifier, the name of a place. Those are kept,
// for they decide incidents (ENABLE_POD_ENI, a database's host, -Xmx).
var (
	plainValue = regexp.MustCompile(`^(?:(?i:true|false|yes|no|on|off|enabled|disabled|none|null)|-?\d{1,7}(?:\.\d+)?(?:m|%|[KMGT]i?B?|[kb])?|\$\([A-Za-z_][\w.]*\))$`)
	awsValue   = regexp.MustCompile(`^(?:arn:aws[a-z-]*:\S+|[a-z]{2}(?:-[a-z]+)+-\d[a-z]?|(?:vpc|subnet|sg|eni|i|vol|ami|lt|rtb|eipalloc|nat)-[0-9a-f]{8,17})$`)
	hostValue  = regexp.MustCompile(`^(?:[a-z0-9-]+(?:\.[a-z0-9-]+)*\.(?:svc|local|internal|amazonaws\.com|amazonaws\.com\.cn)|localhost|[a-z0-9.-]+\.svc\.[a-z0-9.-]+)\.?(?::\d+)?$`)
	wordsValue = regexp.MustCompile(`^[a-z0-9][a-z0-9.:,_/-]*$|^[A-Z]+$|^/[\w./-]*$`)
	placeName  = regexp.MustCompile(`(?:HOST|HOSTNAME|HOSTS|ADDR|ADDRESS|ADDRESSES|ENDPOINTS?|SERVICE|SERVICE_NAME|SERVERS?|BROKERS?|NAMESPACE|REGION|ZONE|CLUSTER|CLUSTER_NAME|QUEUE|PORT|MODE|LEVEL|LOGLEVEL|VERSION|PATH|DIR|FILE)$`)
	flagsName  = regexp.MustCompile(`(?:OPTS|OPTIONS|ARGS|FLAGS)$`)
	plainFlag  = regexp.MustCompile(`^-X(?:m[snx]|ss)\d+[kmgKMG]?$|^-XX:[+-]?\w+(?:=\d+[kmgKMG]?(?:\.\d+)?)?$|^--?[a-z][a-z-]*(?:=\d+)?$`)
)

// vpcCNI is the prefix of the variables that configure the AWS VPC CNI; none
// of them is secret. Source: the README of aws/amazon-vpc-cni-k8s.
const vpcCNI = "AWS_VPC_"

func (r *Redactor) variableValue(name, value string) string {
	upper := strings.ToUpper(name)
	if value == "" || plainValue.MatchString(value) {
		return value
	}
	if strings.HasPrefix(value, "/") && (strings.HasSuffix(upper, "_FILE") || strings.HasSuffix(upper, "_PATH") || strings.HasSuffix(upper, "_DIR")) {
		return value
	}
	if namesSecret(name) || strings.HasSuffix(upper, "SECRET") || strings.HasSuffix(upper, "PASS") || strings.HasSuffix(upper, "_KEY") {
		return r.secret(value)
	}
	if plainText(upper, value) {
		return value
	}
	if flagsName.MatchString(upper) {
		words := strings.Fields(value)
		for i, w := range words {
			if !plainFlag.MatchString(w) {
				words[i] = r.token(w)
			}
		}
		return strings.Join(words, " ")
	}
	if u, err := url.Parse(value); err == nil && u.Scheme != "" && u.Host != "" {
		return r.address(u)
	}
	return r.token(value)
}

func plainText(name, value string) bool {
	if _, err := time.ParseDuration(value); err == nil {
		return true
	}
	if _, err := netip.ParseAddr(value); err == nil {
		return true
	}
	if _, err := netip.ParseAddrPort(value); err == nil {
		return true
	}
	if _, err := netip.ParsePrefix(value); err == nil {
		return true
	}
	return awsValue.MatchString(value) || hostValue.MatchString(value) ||
		strings.HasPrefix(name, vpcCNI) || placeName.MatchString(name) && wordsValue.MatchString(value)
}

// address keeps where a URL leads, and nothing that lets one in.
func (r *Redactor) address(u *url.URL) string {
	s := u.Scheme + "://"
	if u.User != nil {
		if password, ok := u.User.Password(); ok {
			r.secret(password)
		}
		s += r.token(u.User.String()) + "@"
	}
	s += u.Host
	if rest := strings.TrimPrefix(u.RequestURI(), "/"); rest != "" {
		s += "/" + r.token(rest)
	}
	return s
}

package live

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"
)

// explain turns the error of a first contact into one line that says what is
// wrong and what to do next.
func explain(err error, server string) error {
	say := func(what, next string) error { return fmt.Errorf("%s; %s", what, next) }
	var status *statusError
	if errors.As(err, &status) {
		switch status.code {
		case http.StatusUnauthorized:
			return say("the server "+server+" does not accept the credentials: they have expired or are not those of this cluster",
				"log in again (on EKS: `aws sso login` or new AWS keys, then `aws eks update-kubeconfig --name CLUSTER`)")
		case http.StatusForbidden:
			return say("the server refuses: "+status.message, "ask for the rights that `ppodoctor permissions --for rbac` prints")
		}
		return say(fmt.Sprintf("the server %s answers %d: %s", server, status.code, status.message), "see whether the API server is healthy: kubectl get --raw /readyz?verbose")
	}
	text := oneLine(err)
	var dns *net.DNSError
	var unknown x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var network net.Error
	switch {
	case errors.Is(err, exec.ErrNotFound), missingProgram.MatchString(text):
		program := "a program"
		if m := missingProgram.FindStringSubmatch(text); m != nil {
			program = m[1]
		}
		return say("the kubeconfig gets its credentials from "+program+", which is not there", "install it or put it on the PATH (on EKS: the AWS CLI, `aws`)")
	case strings.Contains(text, "getting credentials"):
		return say("the kubeconfig's credential program failed: "+text, "run it by hand and log in again (on EKS: `aws sts get-caller-identity`, `aws sso login`)")
	case errors.As(err, &dns):
		return say("the name of the server "+server+" is not known: "+dns.Error(), "see whether the cluster still exists and whether its endpoint is private (VPN?)")
	case errors.Is(err, syscall.ECONNREFUSED):
		return say("nothing listens at "+server, "see whether the cluster runs and whether the context is the right one: kubectl config current-context")
	case errors.As(err, &unknown), errors.As(err, &hostname), errors.As(err, &invalid):
		return say("the server's certificate is not trusted: "+text, "renew the kubeconfig (on EKS: `aws eks update-kubeconfig --name CLUSTER`), or see whether a proxy is in between")
	case errors.As(err, &record):
		return say("what answers at "+server+" does not speak TLS", "see the server's address in the kubeconfig")
	case errors.Is(err, errIdle), errors.As(err, &network) && network.Timeout(), strings.Contains(text, "deadline exceeded"):
		return say("the server "+server+" does not answer in time", "see whether it can be reached from here (VPN, the endpoint's public access list), or give a longer --timeout")
	}
	return say("the server "+server+" can't be reached: "+text, "see whether `kubectl version` works with the same flags")
}

// missingProgram is how client-go says that a credential program is missing.
// Source: k8s.io/client-go plugin/pkg/client/auth/exec/exec.go.
var missingProgram = regexp.MustCompile(`exec: executable (\S+) not found`)

// ExplainConfig turns the error of loading a client configuration into one
// line that says what is wrong and what to do next.
func ExplainConfig(err error) error {
	text := oneLine(err)
	switch {
	case clientcmd.IsEmptyConfig(err), errors.Is(err, clientcmd.ErrEmptyCluster), strings.Contains(text, "no configuration has been provided"):
		return errors.New("there is no kubeconfig, and this is not a pod; give --kubeconfig FILE, set KUBECONFIG, or read a capture with --snapshot PATH")
	case clientcmd.IsContextNotFound(err), strings.Contains(text, "context") && strings.Contains(text, "does not exist"):
		return fmt.Errorf("%s; `kubectl config get-contexts` lists those that exist", text)
	case clientcmd.IsConfigurationInvalid(err):
		return fmt.Errorf("the kubeconfig is not valid: %s; `kubectl config view` shows it", text)
	}
	return fmt.Errorf("the kubeconfig can't be used: %s; `kubectl config view` shows it", text)
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

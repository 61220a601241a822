package main

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/diagnose"
	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/network"
)

func newPath() *cobra.Command {
	in := &input{}
	var format string
	var verbose bool
	cmd := &cobra.Command{
		Use:   "path FROM TO[:PORT[/PROTOCOL]]",
		Short: "Tell whether a packet gets from one place to another, and what decides it",
		Long: `Tell whether a packet gets from one place to another and its reply back, and
name the rule that lets it pass or the absence that stops it: security groups,
network ACLs, routes, network policies. Nothing is sent; the rules are read.

FROM and TO are pod/NAMESPACE/NAME, node/NAME, service/NAMESPACE/NAME, apiserver,
a VPC endpoint (vpce-…), a network interface (eni-…), an address, a block of
addresses, or the name of a host. A namespace given by -n may be left out.
PORT is a number, or the name of one of the Service's ports; TCP unless /udp or
/sctp follows. A Service with a single port, and the API server, need none.

Exit codes: 0 it passes, 1 it does not (or not everywhere), 2 could not run,
3 it can't be told.`,
		Example: `  ppodoctor path pod/kafka/kafka-0 service/kube-system/kube-dns:53/udp
  ppodoctor path node/ip-10-0-1-2.ec2.internal apiserver
  ppodoctor path apiserver node/ip-10-0-1-2.ec2.internal:10250 -o json`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := validReplyFormat(format); err != nil {
				return err
			}
			place, port, err := splitPort(args[1])
			if err != nil {
				return err
			}
			facts, _, err := in.open(cmd)
			if err != nil {
				return err
			}
			ask := asker{ctx: cmd.Context(), facts: facts, namespace: in.namespace()}
			from, err := ask.endpoint(args[0])
			if err != nil {
				return err
			}
			to, err := ask.endpoint(place)
			if err != nil {
				return err
			}
			number, err := ask.port(to, port)
			if err != nil {
				return err
			}
			facts.Gather(cmd.Context(), probes.Network)
			world, err := probes.Network.Of(facts)
			if err != nil {
				return err
			}
			r := pathReply(world.Path(from, to, port.protocol, number))
			return r.write(cmd, facts.Source(), format, verbose)
		},
	}
	in.flags(cmd)
	replyFlags(cmd, &format, &verbose)
	cmd.Flags().Lookup("namespace").Usage = "the namespace of pods and Services that are named without one"
	return cmd
}

func pathReply(a network.Answer) *reply {
	r := &reply{
		Schema: "ppodoctor/path/v1", Answer: string(a.Truth), Says: a.Says(),
		Question: fmt.Sprintf("%s to %s, %s %d", a.From, a.To, a.Protocol, a.Port), Hops: hopsOf(a),
	}
	if a.Partly {
		r.Says = "not everywhere: " + r.Says
	}
	if a.Truth == network.No {
		for _, h := range a.Decisive() {
			if h.Fix != "" && !slices.Contains(r.Fix, h.Fix) {
				r.Fix = append(r.Fix, h.Fix)
			}
		}
	}
	if err := a.Err(); err != nil {
		r.lacking(err)
	}
	return r
}

func hopsOf(a network.Answer) []hop {
	var all []hop
	for _, h := range a.Hops {
		one := hop{What: string(h.Layer), Answer: string(h.Truth), Code: string(h.Code), Says: h.Says}
		for _, d := range h.Documents {
			one.Commands = append(one.Commands, probes.Document(d).Command())
		}
		all = append(all, one)
	}
	for _, p := range a.Parts {
		for _, h := range hopsOf(p) {
			if !slices.ContainsFunc(all, func(o hop) bool { return o.Says == h.Says && o.What == h.What }) {
				all = append(all, h)
			}
		}
	}
	return all
}

// A wantedPort is a port as it is asked for: a number, a name, or empty.
type wantedPort struct {
	text     string
	protocol network.Protocol
}

var portPart = regexp.MustCompile(`:([A-Za-z0-9-]+)(?:/([A-Za-z]+))?$`)

// splitPort parts TO from its port. A bare IPv6 address has colons but no port.
func splitPort(arg string) (string, wantedPort, error) {
	p := wantedPort{protocol: network.TCP}
	if _, err := netip.ParseAddr(arg); err == nil {
		return arg, p, nil
	}
	if _, err := netip.ParsePrefix(arg); err == nil {
		return arg, p, nil
	}
	m := portPart.FindStringSubmatchIndex(arg)
	if m == nil {
		return arg, p, nil
	}
	p.text = arg[m[2]:m[3]]
	if m[4] >= 0 {
		p.protocol = network.Protocol(strings.ToUpper(arg[m[4]:m[5]]))
	}
	if !slices.Contains([]network.Protocol{network.TCP, network.UDP, network.SCTP}, p.protocol) {
		return "", p, fmt.Errorf("%q: the protocol is tcp, udp or sctp", arg)
	}
	return strings.Trim(arg[:m[0]], "[]"), p, nil
}

// An asker turns what a user names into what exists.
type asker struct {
	ctx       context.Context
	facts     *probes.Facts
	namespace string
}

func (a *asker) endpoint(arg string) (network.Endpoint, error) {
	switch {
	case slices.Contains([]string{"apiserver", "api-server", "kube-apiserver"}, strings.ToLower(arg)):
		return network.APIServer(), nil
	case strings.HasPrefix(arg, "vpce-"):
		return network.VPCEndpoint(arg), nil
	case strings.HasPrefix(arg, "eni-"):
		return network.NetworkInterface(arg), nil
	}
	if ip, err := netip.ParseAddr(arg); err == nil {
		return network.Address(ip), nil
	}
	if block, err := netip.ParsePrefix(arg); err == nil {
		return network.CIDR(block), nil
	}
	parts := strings.Split(arg, "/")
	namespace := a.namespace
	switch len(parts) {
	case 1:
		return network.External(arg), nil
	case 2:
	case 3:
		namespace = parts[1]
	default:
		return network.Endpoint{}, fmt.Errorf("%q names no place: write pod/NAMESPACE/NAME, node/NAME, service/NAMESPACE/NAME, apiserver, or an address", arg)
	}
	ref, err := diagnose.Find(a.ctx, a.facts, parts[0], namespace, parts[len(parts)-1])
	if err != nil {
		return network.Endpoint{}, err
	}
	switch ref.Kind {
	case "Pod":
		return network.Pod(ref.Namespace, ref.Name), nil
	case "Node":
		return network.Node(ref.Name), nil
	case "Service":
		return network.Service(ref.Namespace, ref.Name), nil
	}
	return network.Endpoint{}, fmt.Errorf("%s is no end of a path: name a pod, a node or a Service", ref)
}

// port is the number of the port that was asked for.
func (a *asker) port(to network.Endpoint, p wantedPort) (int, error) {
	if n, err := strconv.Atoi(p.text); err == nil {
		if n < 1 || n > 65535 {
			return 0, fmt.Errorf("there is no port %d", n)
		}
		return n, nil
	}
	if to.Kind == "APIServer" && p.text == "" {
		return 443, nil
	}
	if to.Kind != "Service" {
		if p.text == "" {
			return 0, fmt.Errorf("say which port of %s: add :PORT", to)
		}
		return 0, fmt.Errorf("port %q: only a Service's ports have names; give the number", p.text)
	}
	services, err := probes.Services.Of(a.facts)
	if err != nil {
		return 0, err
	}
	var there []string
	service := services.Get(to.Namespace, to.Name)
	for _, sp := range service.Spec.Ports {
		if p.text == sp.Name && p.text != "" && sameProtocol(sp.Protocol, p.protocol) || p.text == "" && len(service.Spec.Ports) == 1 {
			return int(sp.Port), nil
		}
		there = append(there, strings.TrimPrefix(sp.Name+"=", "=")+strconv.Itoa(int(sp.Port)))
	}
	return 0, fmt.Errorf("say which port of %s: it has %s", to, strings.Join(there, ", "))
}

func sameProtocol(a corev1.Protocol, b network.Protocol) bool {
	return string(a) == string(b) || a == "" && b == network.TCP
}

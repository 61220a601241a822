package diagnose

import (
	"slices"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes"
	"github.com/pposiraegi/ppodoctor/probes/network"
)

// barrierWords says which side stops which protocol, so that nobody opens the
// group of CoreDNS where the clients' own group lets nothing out.
func barrierWords(blocked []network.Answer) string {
	var out, in bool
	for _, a := range blocked {
		for _, h := range a.Decisive() {
			switch {
			case h.Truth != network.No:
			case strings.Contains(h.Fix, "authorize-security-group-egress"):
				out = true
			default:
				in = true
			}
		}
	}
	ports := blockedProtocols(blocked)
	nothingIn := "CoreDNS's side admits nothing on port 53 (" + strings.Join(ports, " and ") + ") from there"
	nothingOut := "the clients' side lets nothing out on port 53 (" + strings.Join(ports, " and ") + ")"
	switch {
	case out && in:
		return nothingOut + ", and " + nothingIn
	case out:
		return nothingOut
	}
	return nothingIn
}

func blockedProtocols(blocked []network.Answer) []string {
	var names []string
	for _, p := range []network.Protocol{network.UDP, network.TCP} {
		if slices.ContainsFunc(blocked, func(a network.Answer) bool { return a.Protocol == p }) {
			names = append(names, string(p))
		}
	}
	return names
}

// shutTime says which lookups end in a time-out: over TCP go only those whose
// answer is too large for one datagram, and those of resolvers told so.
func shutTime(blocked []network.Answer) string {
	if slices.Equal(blockedProtocols(blocked), []string{string(network.TCP)}) {
		return "Every lookup over TCP (large answers, use-vc)"
	}
	return "Every lookup"
}

// onlyTCPShut finds that the groups stop TCP only while the programs' own
// words say that UDP got no answer: the closed port is then not why.
func onlyTCPShut(facts *probes.Facts, s Suspect) (Evidence, bool) {
	o := s.Data.(*origin)
	world, err := probes.Network.Of(facts)
	if err != nil {
		return Evidence{}, false
	}
	dns, err := findDNS(facts)
	if err != nil || dns == nil {
		return Evidence{}, false
	}
	tcp := false
	for _, a := range groupAnswers(world, dns, o) {
		if a.Protocol == network.UDP && a.Truth != network.Yes {
			return Evidence{}, false
		}
		tcp = tcp || a.Protocol == network.TCP && a.Truth == network.No
	}
	var quote Evidence
	for _, e := range s.Effects {
		udp := false
		for _, l := range e.Data.(*lookupTrouble).lines {
			says := strings.ToLower(l.Says)
			if strings.Contains(says, "read udp ") || strings.Contains(says, "dial udp ") || strings.Contains(says, "write udp ") {
				udp, quote = true, l
			}
		}
		if !udp {
			return Evidence{}, false
		}
	}
	return quote, tcp && quote.Says != ""
}

package probes

import (
	"net/netip"
	"testing"
)

func TestRenamedAddresses(t *testing.T) {
	key := []byte("k")
	network := netip.MustParsePrefix(renameAddress(key, "10.20.0.0/16"))
	for _, inside := range []string{"10.20.0.1", "10.20.255.7", "10.20.3.4"} {
		got := renameAddress(key, inside)
		if got == inside || !network.Contains(netip.MustParseAddr(got)) {
			t.Errorf("%s became %s, the network %s", inside, got, network)
		}
	}
	if outside := renameAddress(key, "10.21.0.1"); network.Contains(netip.MustParseAddr(outside)) {
		t.Errorf("10.21.0.1 became %s, inside %s", outside, network)
	}
	if network.Masked() != network || network.Addr().As4()[0] != 10 {
		t.Errorf("10.20.0.0/16 became %s", network)
	}
	for _, same := range []string{"0.0.0.0/0", "127.0.0.1", "169.254.169.254"} {
		if got := renameAddress(key, same); got != same {
			t.Errorf("%s became %s", same, got)
		}
	}
}

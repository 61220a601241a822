package diagnose

import "testing"

func TestNearest(t *testing.T) {
	for _, c := range []struct {
		name  string
		names []string
		want  string
	}{
		{"app-config", []string{"app-configuration", "web-config"}, "app-configuration"},
		{"ghcr-cred", []string{"ghcr-creds", "hub"}, "ghcr-creds"},
		{"passwd", []string{"user", "password"}, "password"},
		{"DB_PASSWORD", []string{"db-password", "DB_PASS"}, "db-password"},
		{"tile-srver", []string{"tile-server"}, "tile-server"},
		{"orders-db", []string{"payments-db", "orders-cache"}, ""},
		{"redis", []string{"redis-exporter-config", "postgres"}, ""},
		{"tls", []string{"ca", "key"}, ""},
		{"a", []string{"b"}, ""},
	} {
		if got := nearest(c.name, c.names); got != c.want {
			t.Errorf("nearest(%q, %q) = %q, want %q", c.name, c.names, got, c.want)
		}
	}
}

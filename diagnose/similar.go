package diagnose

import (
	"cmp"
	"slices"
	"strings"
)

// nearest is the name that was evidently meant by one that does not exist, or
// "": a few letters differ, one continues the other, or they are made of the
// same words.
func nearest(name string, names []string) string {
	type scored struct {
		name  string
		score int
	}
	var near []scored
	for _, n := range names {
		if n == name {
			continue
		}
		if s := likeness(name, n); s > 0 {
			near = append(near, scored{n, s})
		}
	}
	slices.SortFunc(near, func(a, b scored) int { return cmp.Or(cmp.Compare(b.score, a.score), strings.Compare(a.name, b.name)) })
	if len(near) == 0 {
		return ""
	}
	return near[0].name
}

// likeness is 0 for names that have nothing to do with each other; of two, the
// higher is the nearer.
func likeness(a, b string) int {
	a, b = strings.ToLower(a), strings.ToLower(b)
	if a == b {
		return 100
	}
	if bare(a) == bare(b) {
		return 95
	}
	shorter, longer := min(len(a), len(b)), max(len(a), len(b))
	if d := distance(a, b); d <= max(1, shorter/5) && shorter >= 4 {
		return 90 - d
	}
	if shorter >= 4 && shorter*2 >= longer && (strings.HasPrefix(a, b) || strings.HasPrefix(b, a) || strings.HasSuffix(a, b) || strings.HasSuffix(b, a)) {
		return 70
	}
	if shorter >= 4 && shorter*3 >= longer*2 && (abbreviates(a, b) || abbreviates(b, a)) {
		return 60
	}
	words := func(s string) []string {
		return strings.FieldsFunc(s, func(r rune) bool { return r == '-' || r == '.' || r == '_' || r == '/' })
	}
	wa, wb := words(a), words(b)
	shared := 0
	for _, w := range wa {
		if slices.ContainsFunc(wb, func(o string) bool {
			return o == w || len(w) >= 4 && len(o) >= 4 && (strings.HasPrefix(o, w) || strings.HasPrefix(w, o))
		}) {
			shared++
		}
	}
	if shared > 0 && shared*3 >= max(len(wa), len(wb))*2 {
		return 40 + shared
	}
	return 0
}

// bare is a name without what separates its words.
func bare(s string) string { return strings.NewReplacer("-", "", "_", "", ".", "").Replace(s) }

// abbreviates reports whether one name is the other with letters left out:
// "passwd" of "password".
func abbreviates(short, long string) bool {
	if short[0] != long[0] {
		return false
	}
	i := 0
	for j := 0; j < len(long) && i < len(short); j++ {
		if short[i] == long[j] {
			i++
		}
	}
	return i == len(short)
}

// distance is how many letters must be put in, left out, changed or swapped
// with the next to make one word of the other.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

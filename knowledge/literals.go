package knowledge

import (
	"math/bits"
	"regexp/syntax"
	"slices"
	"strings"
)

// required are texts of which every match of the pattern holds at least one,
// in lower case. It is nil where that can't be told.
func required(re *syntax.Regexp) []string {
	need := requiredOf(re.Simplify())
	if shortest(need) < 3 {
		return nil
	}
	return need
}

func requiredOf(re *syntax.Regexp) []string {
	switch re.Op {
	case syntax.OpLiteral:
		if text := strings.ToLower(string(re.Rune)); isASCII(text) {
			return []string{text}
		}
	case syntax.OpCapture, syntax.OpPlus:
		return requiredOf(re.Sub[0])
	case syntax.OpConcat:
		var best []string
		for _, sub := range re.Sub {
			if need := requiredOf(sub); shortest(need) > shortest(best) {
				best = need
			}
		}
		return best
	case syntax.OpAlternate:
		var all []string
		for _, sub := range re.Sub {
			need := requiredOf(sub)
			if need == nil {
				return nil
			}
			all = append(all, need...)
		}
		return all
	}
	return nil
}

func shortest(texts []string) int {
	if len(texts) == 0 {
		return 0
	}
	n := len(texts[0])
	for _, t := range texts {
		n = min(n, len(t))
	}
	return n
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// literals finds in one pass over an entry which patterns can match at all
// (Aho and Corasick's automaton, without regard to case).
type literals struct {
	class   [256]uint16 // of a byte; bytes that no literal holds share 0
	classes int
	next    []int32 // [state*classes+class]
	hits    [][]int // the patterns whose literal ends in the state
	words   int
}

func newLiterals(needs [][]string) *literals {
	l := &literals{classes: 1, words: (len(needs) + 63) / 64}
	states := 1 // at most
	for _, need := range needs {
		for _, text := range need {
			states += len(text)
			for i := range len(text) {
				if c := text[i]; l.class[c] == 0 {
					l.class[c] = uint16(l.classes)
					l.classes++
				}
			}
		}
	}
	for c := 'A'; c <= 'Z'; c++ {
		l.class[c] = l.class[c+'a'-'A']
	}
	l.next, l.hits = make([]int32, 0, states*l.classes), make([][]int, 0, states)
	l.addState()
	for pattern, need := range needs {
		for _, text := range need {
			state := 0
			for i := range len(text) {
				at := state*l.classes + int(l.class[text[i]])
				if l.next[at] == 0 {
					l.next[at] = int32(l.addState())
				}
				state = int(l.next[at])
			}
			l.hits[state] = append(l.hits[state], pattern)
		}
	}
	l.next = slices.Clone(l.next) // many texts begin alike: that many states were not needed
	l.link()
	return l
}

func (l *literals) addState() int {
	l.next = l.next[:len(l.next)+l.classes]
	l.hits = append(l.hits, nil)
	return len(l.hits) - 1
}

// link makes each missing transition that of the longest suffix.
func (l *literals) link() {
	suffix := make([]int, len(l.hits))
	queue := []int{0}
	for len(queue) > 0 {
		state := queue[0]
		queue = queue[1:]
		l.hits[state] = append(l.hits[state], l.hits[suffix[state]]...)
		for c := range l.classes {
			at := state*l.classes + c
			fallback := 0
			if state != 0 {
				fallback = int(l.next[suffix[state]*l.classes+c])
			}
			if child := int(l.next[at]); child != 0 {
				suffix[child] = fallback
				queue = append(queue, child)
			} else {
				l.next[at] = int32(fallback)
			}
		}
	}
}

// candidates are the patterns that may match the entry, ascending.
func (l *literals) candidates(entry string) []int {
	var seen []uint64
	state := 0
	for i := range len(entry) {
		state = int(l.next[state*l.classes+int(l.class[entry[i]])])
		for _, pattern := range l.hits[state] {
			if seen == nil {
				seen = make([]uint64, l.words)
			}
			seen[pattern/64] |= 1 << (pattern % 64)
		}
	}
	var patterns []int
	for w, word := range seen {
		for ; word != 0; word &= word - 1 {
			patterns = append(patterns, w*64+bits.TrailingZeros64(word))
		}
	}
	return patterns
}

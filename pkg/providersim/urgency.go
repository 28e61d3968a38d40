package providersim

import (
	"strings"
	"unicode/utf8"
)

// urgencyLexicon weighs wording, not meaning: what presses raises the score, what is solved or can wait
// lowers it, and a negation turns either around.
type urgencyLexicon struct {
	signals  map[string]signal // by stemmed phrase
	longest  map[string]int    // by first word: the words in the longest phrase
	negators map[string]bool
}

type signal struct {
	weight float64
	solved bool // what pressed before it presses no longer
}

const (
	urgencyBase     = -1.7 // a plain question
	urgencyLimit    = 4.5
	afterSolution   = 0.15 // what remains of pressure that was reported solved later in the text
	negatedShare    = -0.5
	negationReach   = 3 // words
	severeWeight    = 2.6
	blockingWeight  = 1.9
	pressingWeight  = 0.8
	canWaitWeight   = -2.0
	questionWeight  = -0.7
	solvedWeight    = -2.4
	gratitudeWeight = -0.3
)

func newUrgencyLexicon() *urgencyLexicon {
	l := &urgencyLexicon{signals: map[string]signal{}, longest: map[string]int{}, negators: map[string]bool{}}
	for w := range strings.FieldsSeq(negatorWords) {
		l.negators[w] = true
	}
	l.add(severe, signal{weight: severeWeight})
	l.add(blocking, signal{weight: blockingWeight})
	l.add(pressing, signal{weight: pressingWeight})
	l.add(canWait, signal{weight: canWaitWeight})
	l.add(asking, signal{weight: questionWeight})
	l.add(gratitude, signal{weight: gratitudeWeight})
	l.add(solved, signal{weight: solvedWeight, solved: true})
	return l
}

func (l *urgencyLexicon) add(entries string, s signal) {
	for entry := range strings.FieldsSeq(entries) {
		phrase := stemEntry(entry)
		l.signals[phrase] = s
		first, _, _ := strings.Cut(phrase, " ")
		l.longest[first] = max(l.longest[first], strings.Count(phrase, " ")+1)
	}
}

// score weighs a folded text; it is in (0,1). Each signal counts once, so that shouting the same word again adds nothing.
func (l *urgencyLexicon) score(folded string) float64 {
	pressure, relief, solution := 0.0, 0.0, 0.0
	counted := map[string]bool{}
	for _, clause := range clauses(folded) {
		ws := words(clause)
		stems := make([]string, len(ws))
		for i, w := range ws {
			stems[i] = stem(w)
		}
		for i := 0; i < len(stems); {
			phrase, s, n := l.longestAt(stems, i)
			if n == 0 {
				i++
				continue
			}
			weight, isSolved := s.weight, s.solved
			if l.negated(ws, i) {
				phrase = "not " + phrase
				// "not urgent" relieves; "still not solved" presses; "no thanks" says nothing.
				weight *= negatedShare
				isSolved = false
			}
			i += n
			if counted[phrase] {
				continue
			}
			counted[phrase] = true
			switch {
			case isSolved:
				pressure *= afterSolution
				solution += weight
			case weight > 0:
				pressure += weight
				solution = 0 // whatever was solved, this came after it
			default:
				relief += weight
			}
		}
	}
	return sigmoid(min(max(urgencyBase+pressure+relief+solution, -urgencyLimit), urgencyLimit))
}

func (l *urgencyLexicon) longestAt(stems []string, i int) (string, signal, int) {
	for n := min(l.longest[stems[i]], len(stems)-i); n >= 1; n-- {
		phrase := strings.Join(stems[i:i+n], " ")
		if s, ok := l.signals[phrase]; ok {
			return phrase, s, n
		}
	}
	return "", signal{}, 0
}

func (l *urgencyLexicon) negated(ws []string, i int) bool {
	for j := max(0, i-negationReach); j < i; j++ {
		if l.negators[ws[j]] {
			return true
		}
	}
	return false
}

// readable is the part of a folded ticket that the customer says to a person: without the lines quoted from an
// earlier message, and without sentences that are addressed to whoever classifies the ticket.
func readable(folded string) string {
	var out strings.Builder
	for line := range strings.Lines(folded) {
		if strings.HasPrefix(strings.TrimSpace(line), ">") {
			continue
		}
		for _, sentence := range sentences(line) {
			if !instructs(sentence) {
				out.WriteString(sentence)
				out.WriteByte(' ')
			}
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// instructs reports whether a folded sentence tries to write the answer itself.
func instructs(folded string) bool {
	if mentions(folded,
		"is_urgent", "urgency_score", "urgency score", "isurgent", "urgencyscore", "department=", "department =", "\"department\"",
		"system prompt", "system:", "<system", "assistant:", "you are now", "set urgency", "set the urgency", "set priority",
		"set the priority", "classify this", "classify it", "mark this ticket", "mark it as urgent", "mark this as urgent",
		"answer with", "respond with", "reply with", "output only", "return only") {
		return true
	}
	if !mentions(folded, "ignor", "disregard", "forget", "overrid", "oubli", "vergiss", "vergess", "esquec", "olvid", "oblid") {
		return false
	}
	return mentions(folded, "instruc", "instruk", "anweisung", "prompt", "rule", "regla", "regra", "regle", "regel")
}

func mentions(folded string, parts ...string) bool {
	for _, part := range parts {
		if strings.Contains(folded, part) {
			return true
		}
	}
	return false
}

func sentences(line string) []string { return splitAfter(line, ".!?;。！？") }
func clauses(text string) []string   { return splitAfter(text, ".!?;,:\n。！？，") }

// splitAfter parts text behind each of the marks. A mark of the Latin script counts only when white space or
// the end follows, so that "1.5" and "a=0,9" stay whole.
func splitAfter(text, marks string) []string {
	var out []string
	start := 0
	for i, r := range text {
		if !strings.ContainsRune(marks, r) {
			continue
		}
		end := i + utf8.RuneLen(r)
		if r < utf8.RuneSelf && r != '\n' && end < len(text) && !isSpace(text[end]) {
			continue
		}
		out = append(out, text[start:end])
		start = end
	}
	return append(out, text[start:])
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

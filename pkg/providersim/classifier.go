package providersim

import (
	"encoding/json"
	"math"
	"strings"
)

// department is one choice of the classifier.
type department struct {
	name        string
	description string
}

// described finds the departments' descriptions in the instructions, where lines say "- <name>: <description>".
func described(names []string, instructions string) []department {
	descriptions := map[string]string{}
	for line := range strings.Lines(instructions) {
		item, ok := strings.CutPrefix(strings.TrimSpace(line), "- ")
		if !ok {
			continue
		}
		if name, description, ok := strings.Cut(item, ":"); ok {
			descriptions[strings.TrimSpace(name)] = strings.TrimSpace(description)
		}
	}
	out := make([]department, len(names))
	for i, name := range names {
		out[i] = department{name: name, description: descriptions[name]}
	}
	return out
}

// classifier is an offline lexical classifier, not a language model: it counts how much of a ticket's wording
// belongs to each department's own name and description and to the support topics those touch. It answers
// the same ticket with the same numbers always, which is what a stand-in for a model is needed for; it says
// nothing about how well any model would do.
//
// A classifier is made once for a list of departments and is safe for concurrent use.
type classifier struct {
	departments []department
	lexicon     *lexicon
	exact       map[string][]float64 // by stem or phrase: a weight for each department
	loose       map[string][]float64 // the same by prefix
	starts      map[string]bool      // first words of the phrases in exact
	fallback    int                  // the answer when nothing speaks for any department
}

// lexicon is the built-in word lists in the form that tickets are compared in.
type lexicon struct {
	stop    map[string]bool
	topics  []stemmedTopic
	urgency *urgencyLexicon
}

type stemmedTopic struct {
	anchors map[string]bool
	words   []string
	general bool
}

const (
	nameWeight        = 2.0
	descriptionWeight = 1.0
	topicWeight       = 1.0
	phraseFactor      = 1.6 // two words in order say more than the two apart
	looseFactor       = 0.4
	touchedByName     = 1.0
	touchedByText     = 0.5
)

func newLexicon() *lexicon {
	l := &lexicon{stop: map[string]bool{}, urgency: newUrgencyLexicon()}
	for w := range strings.FieldsSeq(stopWords) {
		l.stop[w] = true
	}
	all := topics()
	for i, t := range all {
		st := stemmedTopic{anchors: map[string]bool{}, general: i == len(all)-1}
		for entry := range strings.FieldsSeq(t.anchors) {
			st.anchors[stemEntry(entry)] = true
		}
		seen := map[string]bool{}
		for entry := range strings.FieldsSeq(t.words) {
			if w := stemEntry(entry); !seen[w] {
				seen[w] = true
				st.words = append(st.words, w)
			}
		}
		l.topics = append(l.topics, st)
	}
	return l
}

func stemEntry(entry string) string {
	parts := strings.Split(entry, "_")
	for i := range parts {
		parts[i] = stem(parts[i])
	}
	return strings.Join(parts, " ")
}

// stems lists the stem of every word of a folded text that is no stop word.
func (l *lexicon) stems(folded string) []string {
	all := words(folded)
	out := all[:0]
	for _, w := range all {
		if !l.stop[w] {
			out = append(out, stem(w))
		}
	}
	return out
}

// terms lists what a department's text offers for comparison: its stems, and every two that stand together.
func (l *lexicon) terms(text string) []string {
	stems := l.stems(fold(text))
	out := stems
	for i := 1; i < len(stems); i++ {
		out = append(out, stems[i-1]+" "+stems[i])
	}
	return out
}

func newClassifier(l *lexicon, departments []department) *classifier {
	c := &classifier{departments: departments, lexicon: l, exact: map[string][]float64{}, loose: map[string][]float64{}, starts: map[string]bool{}}
	generalFound := false
	for d, choice := range departments {
		own := map[string]float64{}
		name, description := l.terms(choice.name), l.terms(choice.description)
		raise(own, name, nameWeight)
		raise(own, description, descriptionWeight)
		for _, t := range l.topics {
			strength := t.touch(name, description)
			if strength == 0 {
				continue
			}
			raise(own, t.words, topicWeight*strength)
			if t.general && !generalFound {
				generalFound = true
				c.fallback = d
			}
		}
		for term, weight := range own {
			c.weights(c.exact, term)[d] = weight
			if first, _, phrase := strings.Cut(term, " "); phrase {
				c.starts[first] = true
			} else if p := prefix(term); p != "" {
				row := c.weights(c.loose, p)
				row[d] = max(row[d], weight*looseFactor)
			}
		}
	}
	c.applyRarity(c.exact)
	c.applyRarity(c.loose)
	return c
}

// raise never adds up: a word that a name, a description and a topic all hold counts as its best.
func raise(own map[string]float64, terms []string, weight float64) {
	for _, term := range terms {
		w := weight
		if strings.Contains(term, " ") {
			w *= phraseFactor
		}
		own[term] = max(own[term], w)
	}
}

func (t stemmedTopic) touch(name, description []string) float64 {
	for _, term := range name {
		if t.anchors[term] {
			return touchedByName
		}
	}
	for _, term := range description {
		if t.anchors[term] {
			return touchedByText
		}
	}
	return 0
}

func (c *classifier) weights(table map[string][]float64, term string) []float64 {
	row, ok := table[term]
	if !ok {
		row = make([]float64, len(c.departments))
		table[term] = row
	}
	return row
}

// applyRarity weighs each term by how few departments it speaks for.
func (c *classifier) applyRarity(table map[string][]float64) {
	for _, row := range table {
		holders := 0
		for _, w := range row {
			if w > 0 {
				holders++
			}
		}
		idf := math.Log(1 + float64(len(c.departments))/float64(holders))
		for d := range row {
			row[d] *= idf
		}
	}
}

// best returns the index of the best department for a folded text; the first one on a tie.
func (c *classifier) best(folded string) int {
	scores := make([]float64, len(c.departments))
	mentions := map[string]int{}
	count := func(term string, row []float64) {
		// The k-th mention adds 1/k: repetition counts, but cannot shout down everything else.
		mentions[term]++
		for d, w := range row {
			scores[d] += w / float64(mentions[term])
		}
	}
	stems := c.lexicon.stems(folded)
	for i, s := range stems {
		if row, ok := c.exact[s]; ok {
			count(s, row)
		} else if row, ok := c.loose[prefix(s)]; ok {
			count(s, row)
		}
		if c.starts[s] && i+1 < len(stems) {
			phrase := s + " " + stems[i+1]
			if row, ok := c.exact[phrase]; ok {
				count(phrase, row)
			}
		}
	}
	best := c.fallback
	for d, score := range scores {
		if score > scores[best] || (score == scores[best] && score > 0 && d < best) {
			best = d
		}
	}
	return best
}

// verdict is the classifier's whole answer.
type verdict struct {
	IsUrgent   float64 `json:"is_urgent"`
	Department string  `json:"department"`
	Urgency    float64 `json:"urgency_score"`
}

func (c *classifier) classify(t ticket) verdict {
	folded := readable(fold(t.subject + "\n" + t.message))
	urgency := c.lexicon.urgency.score(folded)
	return verdict{
		Department: c.departments[c.best(folded)].name,
		IsUrgent:   round3(sharpen(urgency)),
		Urgency:    round3(urgency),
	}
}

// sharpen pulls a score away from the middle and keeps the side of one half it is on.
func sharpen(score float64) float64 {
	return sigmoid(1.8 * math.Log(score/(1-score)))
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func round3(x float64) float64 { return math.Round(x*1000) / 1000 }

func (v verdict) json() string {
	out, err := json.Marshal(v)
	if err != nil {
		panic(err) // three rounded finite numbers and a string always encode
	}
	return string(out)
}

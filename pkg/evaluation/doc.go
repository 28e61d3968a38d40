// Package evaluation holds the rules of what is asked of a model and what counts as its answer: the evaluator
// [Version] and its digest, the answer's contract and its strict reading, the price of a call, and the
// form of a decision. It takes and returns values, and does no I/O.
//
// # The answer's contract, version 1
//
// A response is an answer when it is exactly one JSON object with exactly these three keys, each once:
//
//	is_urgent      a number in [0, 1]
//	urgency_score  a number in [0, 1]
//	department     a string, the name of one of the version's departments
//
// Nothing is repaired: a value out of range is a violation, never clamped, and so are strings or booleans in place
// of numbers. Three things alone are forgiven, because models do them and they leave no doubt of what was meant:
// white space around the object, one Markdown code fence around it, and white space or letter case in the
// department's name, which is returned in the version's spelling.
//
// # The digest
//
// The digest covers every field that can change an answer and no other, so that a price or a retry limit can differ
// between two registrations of the same question, while an edited prompt never serves answers to the old one:
//
//	sha256("evalonce/version/1" ‖ provider ‖ model ‖ effort ‖ prompt ‖
//	       count(departments) ‖ (name ‖ description)… ‖ max_output_tokens ‖ answer_schema)
//
// where each text is its length in bytes followed by the bytes, and each number, count and length is an 8-byte
// big-endian integer. The format is stored, so it never changes under its name; golden vectors pin it.
package evaluation

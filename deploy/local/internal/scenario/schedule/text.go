package schedule

import "fmt"

// matter is something that people write about.
type matter struct {
	subject string
	first   []string
	then    []string
}

func matters() []matter {
	return []matter{
		{
			subject: "Charged twice",
			first:   []string{"My card was charged twice for the same invoice.", "There are two payments for one order on my statement.", "You have taken the monthly fee two times."},
			then:    []string{"Please refund one of them.", "I need the money back before Friday, my account is overdrawn.", "A corrected invoice would be enough for now."},
		},
		{
			subject: "The app does not open",
			first:   []string{"Since the last update the app closes as soon as I open it.", "The app shows a white page and nothing else.", "All our devices have been offline since this morning."},
			then:    []string{"Nobody here can work.", "I have installed it again, with the same result.", "It is not urgent, I use the website meanwhile."},
		},
		{
			subject: "No consigo entrar",
			first:   []string{"No me llega el código de verificación.", "La contraseña nueva tampoco funciona.", "Alguien ha entrado en mi cuenta desde otro país."},
			then:    []string{"¿Me la pueden restablecer?", "Necesito entrar hoy mismo.", "Bloqueen la cuenta, por favor."},
		},
		{
			subject: "Encomenda em falta",
			first:   []string{"A encomenda devia ter chegado há uma semana.", "A caixa chegou aberta e falta metade.", "O estafeta deixou a encomenda noutra morada."},
			then:    []string{"Podem ver onde está?", "Preciso dela antes de amanhã.", "Prefiro o dinheiro de volta."},
		},
		{
			subject: "Angebot für 40 Plätze",
			first:   []string{"Wir überlegen, auf Ihren größeren Tarif zu wechseln.", "Unser Büro wächst auf 40 Leute.", "Gibt es für Schulen einen eigenen Preis?"},
			then:    []string{"Bitte schicken Sie uns ein Angebot.", "Eine Vorführung nächste Woche wäre gut.", "Es eilt nicht."},
		},
		{
			subject: "Mes données personnelles",
			first:   []string{"Je voudrais savoir quelles données vous gardez de moi.", "Supprimez mon compte et tout ce qui s'y trouve.", "Notre avocat demande une copie du contrat de traitement."},
			then:    []string{"Le délai légal se termine dans deux jours.", "Merci de confirmer par écrit.", "Prenez le temps qu'il faut."},
		},
	}
}

// Text is what the tickets of one content say. Different contents differ.
func (s Schedule) Text(content int) (subject, message string) {
	all := matters()
	r := stream(s.Seed, fmt.Sprintf("text %d", content))
	m := all[r.IntN(len(all))]
	first, then := m.first[r.IntN(len(m.first))], m.then[r.IntN(len(m.then))]
	return m.subject, fmt.Sprintf("%s %s\n\nRef. %06d", first, then, content)
}

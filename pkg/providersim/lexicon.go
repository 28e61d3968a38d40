//nolint:misspell // the words are of six languages
package providersim

// topic is one field of support work. Its words speak for a department only when one of its anchors occurs in
// that department's own name or description. Words are parted by spaces; an underscore joins a phrase of two.
type topic struct {
	anchors string
	words   string
}

// topics is general knowledge of support desks, in English, Portuguese, Spanish, Catalan, German and French
// (one line each where a language adds words). It is not fitted to any data set.
func topics() []topic {
	return []topic{
		{ // billing
			anchors: `billing invoice invoices payment payments refund refunds subscription subscriptions pricing
				faturacao faturamento pagamentos facturacion pagos facturacio pagaments abrechnung rechnung rechnungen zahlung
				zahlungen facturation paiement paiements`,
			words: `bill bills billed invoice invoiced receipt receipts payment pay paid charge charged charges overcharged charged_twice
				double_charge refund reimbursement price pricing discount coupon vat tax subscription renewal renew plan cancel_subscription
				fatura faturas recibo pagamento pagar paguei cobranca cobrado cobraram duas_vezes reembolso preco desconto iva assinatura subscricao
				factura facturas pago pague cobro cobrado cobraron dos_veces reembolso devolucion precio descuento suscripcion
				factures rebut pagament cobrament cobrat dues_vegades reemborsament preu descompte subscripcio
				rechnung rechnungen quittung zahlung bezahlt abgebucht doppelt zweimal erstattung ruckerstattung preis rabatt mehrwertsteuer abo abonnement
				facture factures recu paiement payer paye preleve prelevement debite deux_fois remboursement prix remise tva abonnement`,
		},
		{ // technical support
			anchors: `technical technology tech bug bugs outage outages engineering software it incident incidents infrastructure
				tecnico tecnica suporte_tecnico soporte_tecnico suport_tecnic tecnic technik technischer technische technique`,
			words: `bug bugs error errors crash crashes crashed crashing broken down outage offline slow timeout timeouts freeze freezes frozen
				server servers website site app application page pages api integration webhook sync install update upgrade version browser export
				login_page not_working not_load stopped_working error_500 screen blank latency production deploy configuration device router wifi connection
				erro erros falha avaria aplicacao servidor pagina lento travou bloqueou nao_funciona instalar atualizacao ecra ligacao rede
				fallo averia aplicacion servidor pagina lento caido caida no_funciona instalar actualizacion pantalla conexion
				fallada avaria aplicacio servidor pagina lent caigut caiguda no_funciona installar actualitzacio pantalla connexio
				fehler absturz abgesturzt ausfall server webseite anwendung seite langsam funktioniert_nicht geht_nicht update bildschirm verbindung storung
				erreur panne plante bogue serveur site application page lent marche_pas fonctionne_pas mise_jour ecran connexion`,
		},
		{ // account access
			anchors: `account accounts login access password sign_in identity authentication profile
				conta contas acesso cuenta cuentas acceso compte comptes acces konto konten zugang anmeldung`,
			words: `account login log_in sign_in signin logged password passcode reset_password username email verification code two_factor 2fa mfa
				authenticator locked_out locked unlock reactivate deactivated profile register registration access permission permissions
				conta entrar senha palavra_passe palavrapasse redefinir utilizador usuario acesso bloqueada verificacao codigo registo
				cuenta contrasena iniciar_sesion entrar acceder acceso usuario bloqueada restablecer verificacion codigo registro
				compte contrasenya iniciar_sessio entrar accedir acces usuari bloquejat bloquejada restablir verificacio codi registre
				konto passwort kennwort anmelden einloggen zugang zugriff benutzer gesperrt zurucksetzen bestatigungscode registrierung
				compte mot_passe connecter connexion identifiant acces bloque reinitialiser verification code inscription`,
		},
		{ // sales
			anchors: `sales sale presales upgrade enterprise purchase purchases buying quote quotes
				vendas comercial ventas comercial vendes vertrieb verkauf ventes commercial`,
			words: `buy buying purchase quote quotation demo trial pricing price enterprise licence license licences licenses seats discount offer
				contract upgrade reseller volume interested evaluate evaluating sales
				comprar compra orcamento proposta demonstracao licencas plano interessado interessados empresa desconto
				comprar presupuesto propuesta demostracion licencias interesado interesados empresa descuento
				comprar pressupost proposta demostracio llicencies interessat interessats empresa descompte
				kaufen angebot kostenvoranschlag vorfuhrung lizenzen interesse interessiert unternehmen rabatt
				acheter devis demonstration licences interesse interesses entreprise remise offre`,
		},
		{ // delivery
			anchors: `shipping shipment delivery deliveries logistics orders order returns warehouse
				entregas entrega envio envios encomendas pedidos lliurament lliuraments enviaments comandes versand lieferung lieferungen
				bestellung bestellungen livraison livraisons expedition commandes`,
			words: `order orders ordered package parcel shipment ship shipped shipping delivery deliver delivered courier tracking track late lost damaged
				arrive arrived address return exchange warehouse carrier
				encomenda pedido entrega entregue transportadora envio enviado rastreio chegou morada endereco devolver troca
				pedido paquete entrega entregado envio enviado mensajero seguimiento llego direccion devolver cambio
				comanda paquet lliurament lliurat enviament enviat missatger seguiment arribat adreca retornar canvi
				bestellung paket lieferung geliefert versand versendet sendung sendungsnummer zusteller angekommen adresse rucksendung umtausch
				commande colis livraison livre expedie expedition transporteur suivi arrive adresse retour echange`,
		},
		{ // cards
			anchors: `card cards credit_card credit_cards debit_card cartao cartoes tarjeta tarjetas targeta targetes karte karten
				kreditkarte kreditkarten carte cartes`,
			words: `card cards credit_card charge_card store_card visa mastercard amex american_express discover capital_one citi citibank cardholder
				credit_limit credit_line annual_fee late_fee interest apr reward rewards points cashback miles bonus promotion balance_transfer statement
				minimum_payment merchant purchase purchases purchased transaction transactions chargeback dispute_charge charge_dispute charges refund
				pin contactless swipe declined card_declined card_application card_company
				cartao credito limite anuidade milhas compra recusado
				tarjeta credito limite anualidad millas compra rechazada
				targeta credit limit anualitat milles compra rebutjada
				karte kreditkarte kreditlimit jahresgebuhr punkte einkauf abgelehnt
				carte credit plafond cotisation points achat refusee`,
		},
		{ // loans and mortgages
			anchors: `loan loans mortgage mortgages lending home_loan student_loan credito_habitacao emprestimo emprestimos hipoteca hipotecas
				prestamo prestamos prestec prestecs kredit kredite darlehen hypothek hypotheken pret prets hypotheque hypothecaire`,
			words: `loan loans mortgage lender lending borrower borrowed refinance refinancing escrow foreclosure foreclose forbearance deferment modification
				loan_modification loan_servicer servicer servicing principal principal_balance interest_rate rate_lock amortization appraisal closing closing_date
				closing_cost home house property property_tax homeowner homeowners equity heloc deed title underwriter underwriting preapproved student
				student_loan navient repayment auto_loan car_loan vehicle car payday_loan personal_loan monthly_payment mortgage_payment lien hazard insurance
				emprestimo hipoteca habitacao prestacao juros casa imovel
				prestamo hipoteca vivienda cuota intereses casa inmueble
				prestec hipoteca habitatge quota interessos casa immoble
				kredit darlehen hypothek baufinanzierung rate raten zinsen haus immobilie
				pret emprunt hypotheque logement mensualite interets maison immobilier`,
		},
		{ // credit reporting
			anchors: `credit_report credit_reports credit_reporting credit_bureau credit_score credit_file credit_history reporting
				relatorio_credito informe_credito informe_credit schufa fichier_credit`,
			words: `credit_report credit_reports credit_reporting reporting report reported credit_bureau credit_bureaus bureau bureaus credit_score
				score scores credit_file credit_history equifax experian transunion trans_union fcra fair_credit inquiry inquiries hard_inquiry inquiry_credit
				tradeline trade_line inaccurate inaccuracies inaccurate_information incorrect_information accurate verify verified identity_theft
				block_information delete deletion remove removed reporting_agency reporting_agencies consumer_reporting late_payment negative_information
				personal_information furnisher reinvestigation bankruptcy file accounts_reporting unauthorized_inquiry
				relatorio_credito pontuacao historico_credito
				informe_credito puntuacion historial_credito
				informe_credit puntuacio historial_credit
				schufa bonitat auskunftei
				cote_credit fichage historique_credit`,
		},
		{ // debt collection
			anchors: `debt debts collection collections collector collectors debt_collection cobranca cobrancas divida dividas cobro deuda deudas
				cobrament deute deutes inkasso schulden recouvrement dette dettes`,
			words: `debt debts owe owed owing collector collectors collection collections collection_agency collection_company debt_collector debt_collection
				collect collecting fdcpa validation validate validate_debt debt_validation cease_desist harass harassing harassment harassed threaten threatened
				threatening calling call calls phone_calls called_work garnish garnishment garnished lawsuit sue sued court judgment summons served attorney
				law_office creditor original_creditor charged_off settle settlement midland portfolio_recovery lvnv recovery recovery_associates
				medical_bill statute_limitation settled_debt
				divida cobranca cobrador cobradores devo penhora tribunal
				deuda cobrador cobradores debo embargo juzgado
				deute cobrador cobradors dec embargament jutjat
				inkasso schulden schuld mahnung mahnungen pfandung gericht
				dette recouvrement huissier dois saisie tribunal`,
		},
		{ // retail banking
			anchors: `bank banking retail_banking checking savings deposit deposits banco bancario bancaria bancaires banc banca bankwesen banque bancaire`,
			words: `bank banking checking savings checking_account savings_account bank_account account_closed close_account closed_account branch teller
				deposit deposits deposited direct_deposit check checks cheque cashier cashed withdraw withdrawal withdrawals withdrew withdrawn atm overdraft
				overdrawn overdraft_fee wire wire_transfer transfer transfers transferred transaction zelle venmo paypal cash_app cashapp money_order
				debit_card debit fund funds money cash hold available_balance routing chase wells_fargo bank_america balance sent_money send_money gift_card
				banco conta_bancaria deposito levantamento transferencia saldo agencia multibanco
				banco cuenta_bancaria deposito retiro transferencia saldo sucursal cajero
				banc compte_bancari diposit transferencia saldo oficina caixer
				bank bankkonto girokonto einzahlung abhebung uberweisung filiale geldautomat
				banque compte_bancaire depot retrait virement solde agence distributeur`,
		},
		{ // fraud and security
			anchors: `fraud security abuse scam trust_safety fraude seguranca seguridad seguretat frau betrug sicherheit securite`,
			words: `fraud fraudulent scam scammed scammer phishing stolen theft hacked hacker hack compromised breach unauthorised unauthorized suspicious
				unrecognised unrecognized identity_theft malware vulnerability stranger impersonation police
				fraude burla roubado roubada furto invadida pirateada suspeito suspeita nao_reconheco
				fraude estafa robado robada hackeado hackeada pirateada sospechoso sospechosa no_reconozco
				frau estafa robat robada hackejat hackejada piratejat sospitos sospitosa no_reconec
				betrug betrugsfall gestohlen gehackt verdachtig phishing unbekannte missbrauch
				fraude arnaque vole volee pirate piratee suspect suspecte hameconnage`,
		},
		{ // privacy
			anchors: `privacy gdpr data_protection compliance legal privacidade rgpd lgpd privacidad privacitat datenschutz dsgvo confidentialite`,
			words: `privacy gdpr personal_data data_protection consent erase erasure delete_data delete_account data_request unsubscribe cookies opt_out lawyer
				privacidade rgpd lgpd dados_pessoais dados apagar consentimento
				privacidad rgpd datos_personales datos borrar consentimiento
				privacitat rgpd dades_personals dades esborrar consentiment
				datenschutz dsgvo personenbezogene daten loschen einwilligung
				confidentialite rgpd donnees_personnelles donnees effacer supprimer consentement`,
		},
		{ // everything else
			anchors: `general other others misc miscellaneous feedback questions customer_service geral outros otros altres allgemein sonstiges autres`,
			words: `question questions wondering information feedback suggestion suggestions compliment hours opening idea feature
				pergunta duvida informacao sugestao horario
				pregunta duda informacion sugerencia horario
				pregunta dubte informacio suggeriment horari
				frage fragen auskunft vorschlag offnungszeiten
				question renseignement information suggestion horaires`,
		},
	}
}

// stopWords carry no subject in any of the six languages, once folded.
const stopWords = `a about after all also am an and any are as at be been but by can could did do does dont for from get got had has have
	he her hi hello him his how i if in into is it its just me more my no not now of on or our out please she so some than thank thanks that the their
	them then there these they this to too up us very was we were what when which who why will with would you your
	o os um uma de do da dos das e em no na nos nas que se por para com sem mais como mas foi ser sao esta este isso eu ele ela nao ja meu minha
	el la los las un una y del al en es con por lo le su sus mi mis pero muy ya hola gracias estoy ha he
	els les uns unes i amb per al als d l meu meva molt gracies que no es ho
	der die das den dem des ein eine einen einem einer und oder aber ist sind war ich sie wir ihr mein meine nicht mit von zu im am auf fur bei danke bitte
	le les un une et ou mais de du des dans est sont je vous nous il elle mon ma mes ne pas avec pour sur au aux merci bonjour ce cette`

// negatorWords turn a signal that follows shortly around.
const negatorWords = `not no never isnt arent wasnt werent dont doesnt didnt cannot cant without nothing hardly
	nao nunca sem nenhum nenhuma nada ningun ninguna sin jamas cap sense mai
	nicht kein keine keinen keiner nie ohne pas jamais sans aucun aucune`

// severe presses by itself: harm under way, loss, law, or the word itself.
const severe = `urgent urgently asap emergency outage down is_down went_down everything_is_down fraud fraudulent stolen hacked compromised
	breach data_breach lawsuit legal_deadline legal_action court_date eviction foreclosure ransomware critical production_down safety unsafe
	identity_theft emptied drained data_loss losing_data right_now immediately as_soon_as_possible
	urgente urgencia urgentemente emergencia em_baixo esta_em_baixo fora_do_ar caiu fraude roubado roubada roubaram invadida invadiram prazo_legal
	tribunal imediatamente o_mais_rapido_possivel critico agora_mesmo
	emergencias caido caida se_ha_caido fraude robado robada robaron robo hackeado hackeada plazo_legal inmediatamente cuanto_antes lo_antes_posible
	critico ahora_mismo
	urgencia emergencia caigut caiguda ha_caigut robat robada robatori hackejat hackejada termini_legal immediatament com_mes_aviat_millor
	tan_aviat_com_sigui_possible critic ara_mateix frau
	dringend eilig eilt notfall ausfall ausgefallen totalausfall betrug gestohlen gehackt gesetzliche_frist frist_lauft sofort umgehend
	so_schnell_wie_moglich kritisch
	urgence panne en_panne hors_service fraude vole volee pirate piratee delai_legal date_limite_legale immediatement des_que_possible
	au_plus_vite critique tout_de_suite`

// blocking stops the customer from working or costs them money.
const blocking = `not_working doesnt_work does_not_work nothing_works stopped_working cannot_access cant_access cannot_log_in cant_log_in cannot_login
	cant_login cannot_sign_in cant_sign_in locked_out blocked_account account_blocked account_locked charged_twice double_charged unauthorized
	unauthorised unable_to_access unable_to_work cant_work cannot_work losing_money losing_customers lost_access deadline crash crashing
	all_our_users all_users customers_cannot whole_team
	nao_funciona deixou_de_funcionar nao_consigo_entrar nao_consigo_aceder nao_consigo_acessar nao_conseguimos bloqueada bloqueado cobrado_duas_vezes
	cobraram_duas_vezes prazo parado paradas perder_dinheiro
	no_funciona dejo_de_funcionar no_puedo_entrar no_puedo_acceder no_podemos bloqueada bloqueado cobrado_dos_veces cobraron_dos_veces plazo
	perdiendo_dinero parados
	no_funciona ha_deixat_de_funcionar no_puc_entrar no_puc_accedir no_podem bloquejada bloquejat cobrat_dues_vegades termini perdent_diners aturats
	funktioniert_nicht geht_nicht geht_nichts nichts_geht kein_zugriff keinen_zugriff gesperrt doppelt_abgebucht zweimal_abgebucht frist stillstand
	konnen_nicht_arbeiten
	ne_fonctionne_pas ne_fonctionne_plus ne_marche_pas ne_marche_plus ne_peux_pas_acceder ne_pouvons_plus bloque bloquee debite_deux_fois preleve_deux_fois
	delai date_limite a_l_arret`

// pressing adds weight without deciding.
const pressing = `today tonight tomorrow hours still_waiting waiting_for_days unacceptable frustrated angry again third_time complaint escalate important
	error fails failed failing missing lost wrong threatening threatened harassing police
	hoje amanha horas inaceitavel outra_vez reclamacao importante erro falha policia
	hoy manana horas inaceptable otra_vez reclamacion importante falla policia
	avui dema hores inacceptable una_altra_vegada reclamacio important falla policia
	heute morgen stunden inakzeptabel schon_wieder beschwerde wichtig fehler polizei
	aujourd_hui aujourdhui demain heures inacceptable encore_une_fois reclamation important erreur police`

// canWait says so in the customer's own words.
const canWait = `no_rush no_hurry not_urgent whenever_you_can when_you_have_time when_you_have_a_moment take_your_time low_priority nothing_urgent
	can_wait at_your_convenience
	sem_pressa nao_e_urgente nao_urgente quando_puder quando_puderem quando_tiver_tempo pode_esperar
	sin_prisa no_es_urgente no_hay_prisa cuando_pueda cuando_puedan cuando_tenga_tiempo puede_esperar
	sense_pressa no_es_urgent no_hi_ha_pressa no_corre_pressa quan_pugueu quan_puguin quan_tingueu_temps pot_esperar
	keine_eile nicht_dringend eilt_nicht nicht_eilig wenn_sie_zeit_haben bei_gelegenheit kann_warten
	pas_urgent rien_d_urgent pas_presse quand_vous_pouvez quand_vous_aurez_le_temps peut_attendre`

// asking marks a question or a wish.
const asking = `how_do_i how_can_i is_it_possible wondering curious suggestion feature_request would_be_nice question would_like_to_know
	gostaria_de_saber pergunta duvida sugestao como_posso seria_bom
	quisiera_saber me_gustaria_saber pregunta duda sugerencia como_puedo
	voldria_saber m_agradaria_saber pregunta dubte suggeriment com_puc
	wollte_fragen ich_wollte_wissen frage vorschlag wie_kann_ich
	je_voudrais_savoir j_aimerais_savoir question suggestion comment_puis_je`

const gratitude = `thanks thank_you obrigado obrigada gracias gracies danke merci`

// solved ends what pressed before it.
const solved = `solved resolved fixed sorted works_now working_now works_again working_again back_up figured_it_out all_good false_alarm problem_solved
	resolvido resolvida resolveu ja_funciona solucionado ja_esta_tudo_bem falso_alarme
	resuelto resuelta solucionado solucionada ya_funciona ya_esta_arreglado arreglado falsa_alarma
	resolt resolta solucionat solucionada ja_funciona arreglat falsa_alarma
	gelost erledigt behoben geklart funktioniert_wieder geht_wieder fehlalarm
	resolu resolue regle reglee ca_remarche fonctionne_a_nouveau remarche fausse_alerte`

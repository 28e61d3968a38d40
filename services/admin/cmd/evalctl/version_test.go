package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/evalonce/evalonce/proto/gen/evalonce/admin/v1"
)

func TestFromRegistrationToPromotion(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	demo := filepath.Join("..", "..", "..", "..", "deploy", "local", "tickets", "demo-version.json")
	v2 := file(t, "v2.yaml", strings.Replace(yamlVersion("v2", "red.", "max_age: 3600s", "effort: low"),
		"prompt: |\n  red.\n  ---\n", "prompt: \"Sort: \\e[31mred.\\n---\"\n", 1))

	if got := o.must("version", "list"); got.out != "ID  ACTIVE  PROVIDER  MODEL  EFFORT  PROMPT VERSION  ROUTE  CREATED\n" {
		t.Errorf("no versions: %q", got.out)
	}
	if got := o.must("version", "register", "-f", demo); got.out != "version demo-1 is registered\n" {
		t.Errorf("%+v", got)
	}
	if got := o.must("version", "register", "-f", demo); got.out != "version demo-1 was registered already\n" {
		t.Errorf("%+v", got)
	}
	if got := o.must("version", "promote", "demo-1", "--yes"); got.out != "version demo-1 is active\n" || got.err != "" {
		t.Errorf("%+v", got)
	}
	if got := o.must("version", "register", "-f", v2, "--promote", "--yes"); got.out != "version v2 is active\n" || got.err != "version v2 is registered\n" {
		t.Errorf("%+v", got)
	}
	o.runs("version", "promote", "v2", "--yes", "--expected", "demo-1").want(t, exitConflict, "promote version v2: the active version is v2, not demo-1")
	o.must("version", "promote", "demo-1", "--yes", "--expected", "v2")
	o.must("version", "promote", "v2", "--yes", "--expected", "demo-1")

	list := strings.Split(o.must("version", "list").out, "\n")
	if len(list) != 4 || !strings.HasPrefix(list[1], "v2      yes     openai    m-v2 ") || !strings.HasPrefix(list[2], "demo-1          openai    offline-lexical-classifier ") {
		t.Errorf("listed:\n%s", strings.Join(list, "\n"))
	}
	got := o.must("version", "get", "v2")
	for _, part := range []string{
		"ID                 v2\n", "Active             yes\n", "Max age            1h0m0s\n", "Effort             low\n", "Max attempts       8\n",
		"Max unknown calls  2\n", "cached input  0\n", "output        2\n", "billing     money\n", "\nPROMPT\nSort: \\x1b[31mred.\n---\n",
	} {
		if !strings.Contains(got.out, part) {
			t.Errorf("v2 is shown without %q:\n%s", part, got.out)
		}
	}
}

func TestJSONIsForPrograms(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	path := file(t, "v1.yaml", yamlVersion("v1", "Sort."))
	read := func(got outcome, m proto.Message) {
		t.Helper()
		if err := protojson.Unmarshal([]byte(got.out), m); err != nil {
			t.Fatalf("%+v: %v", got, err)
		}
	}
	one := func(got outcome) *adminv1.Version {
		t.Helper()
		v := &adminv1.Version{}
		read(got, v)
		return v
	}
	promoted := func(got outcome) *adminv1.Version {
		t.Helper()
		response := &adminv1.PromoteVersionResponse{}
		read(got, response)
		return response.GetVersion()
	}
	v := one(o.must("version", "register", "-f", path, "-o", "json"))
	if v.GetId() != "v1" || len(v.GetDigest()) != 64 || v.GetActive() || v.GetPrices().GetOutputUsdPerMtok() != "2" {
		t.Errorf("registered %v", v)
	}
	if v = promoted(o.must("version", "promote", "v1", "--yes", "-o", "json")); !v.GetActive() {
		t.Errorf("promoted %v", v)
	}
	got := o.must("version", "register", "-f", path, "--promote", "--yes", "--output=json")
	if v = promoted(got); !v.GetActive() || got.err != "version v1 was registered already\n" {
		t.Errorf("%+v", got)
	}
	shown := o.must("version", "get", "v1", "-o", "json")
	if again := o.must("version", "get", "v1", "-o", "json"); again != shown || !strings.Contains(shown.out, "\n  \"max_age\": \"86400s\",\n") {
		t.Errorf("%s, then %s", shown.out, again.out)
	}
	var list struct{ Versions []map[string]any }
	if err := json.Unmarshal([]byte(o.must("version", "list", "-o", "json").out), &list); err != nil || len(list.Versions) != 1 || list.Versions[0]["active"] != true {
		t.Errorf("%+v, %v", list, err)
	}
	// What was shown can be registered again, or as the beginning of another version.
	if got := o.answers(shown.out, "version", "register", "-f", "-"); got.code != 0 || got.out != "version v1 was registered already\n" {
		t.Errorf("%+v", got)
	}
	next := strings.NewReplacer(`"id": "v1"`, `"id": "v2"`, `"Sort.`, `"Sort well.`).Replace(shown.out)
	if got := o.answers(next, "version", "register", "-f", "-"); got.out != "version v2 is registered\n" {
		t.Errorf("%+v", got)
	}
}

func TestRefusalsAreExplained(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.must("version", "register", "-f", file(t, "v1.yaml", yamlVersion("v1", "Sort.")))
	register := func(content string) outcome { return o.runs("version", "register", "-f", file(t, "v", content)) }

	register(yamlVersion("v1", "Sort!")).want(t, exitConflict, "register version v1: version v1 is registered with another content")
	register(strings.Replace(yamlVersion("v1", "Sort."), "id: v1", "id: v1-again", 1)).want(t, exitConflict, "register version v1-again: ", "use that one")
	one := register(yamlVersion("v3", "Sort.", "max_age: 0s"))
	one.want(t, exitUsage, "register version v3: version.max_age: must be whole seconds")
	if strings.Count(one.err, "version.max_age") != 1 {
		t.Errorf("told twice: %s", one.err)
	}
	register(`{"id":"V4","departments":[{"name":"a"},{"name":" A"}],"prices":{"input_usd_per_mtok":"cheap"}}`).want(t, exitUsage, "fields are invalid\n",
		"\n  version.id: must have", "\n  version.departments[1].name: is the name of", "\n  version.prices.input_usd_per_mtok: must be a decimal number")
	o.runs("version", "get", "absent").want(t, exitNotFound, "get version absent: there is no version absent")
	o.runs("version", "promote", "absent", "--yes").want(t, exitNotFound, "promote version absent: there is no version absent")
	o.runs("version", "get", "Not an id").want(t, exitUsage, "id: must have")
	if got := o.must("version", "list", "-o", "json"); strings.Count(got.out, `"id"`) != 1 {
		t.Errorf("stored: %s", got.out)
	}
}

func TestFilesAreReadStrictly(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	for name, c := range map[string]struct {
		content string
		parts   []string
	}{
		"an unknown field":         {"{\n \"id\": \"v1\", \"tone\": \"kind\"}", []string{` (line 2:14): unknown field "tone"`}},
		"an unknown field in YAML": {yamlVersion("v1", "Sort.", "tone: kind"), []string{`unknown field "tone"`}},
		"a field twice":            {`{"id":"v1","id":"v2"}`, []string{`duplicate field "id"`}},
		"a field twice in YAML":    {yamlVersion("v1", "Sort.", "id: v2"), []string{"not valid YAML", `"id" already set`}},
		"a price without quotes":   {yamlVersion("v1", "Sort.") + "unknown_policy: hold\nprices: {input_usd_per_mtok: 0.25}\n", []string{"already set"}},
		"a number as a text":       {"id: 1.10", []string{"invalid value for string field id: 1.1"}},
		"a word that YAML knows":   {"effort: no", []string{"invalid value for string field effort: false"}},
		"two documents":            {"--- # the first\n" + yamlVersion("v1", "Sort.") + "---\n" + yamlVersion("v2", "Sort."), []string{"more than one YAML document"}},
		"JSON cut short":           {`{"id":"v1"`, []string{"unexpected"}},
		"two values":               {`{"id":"v1"}{}`, []string{"unexpected token"}},
		"YAML that is none":        {"id: [", []string{"not valid YAML"}},
		"a list":                   {"- id: v1", []string{"unexpected token"}},
		"a text":                   {"v1", []string{"unexpected token"}},
		"nothing":                  {" \n", []string{"is empty"}},
		"bytes":                    {"id: \xff\xfe", []string{"not valid YAML"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := file(t, "version", c.content)
			o.runs("version", "register", "-f", path).want(t, exitUsage, append(c.parts, "evalctl: "+path)...)
		})
	}
	o.runs("version", "register", "-f", filepath.Join(t.TempDir(), "absent.json")).want(t, exitUsage, "absent.json: no such file")
	o.runs("version", "register", "-f", "-").want(t, exitUsage, "- is empty")
	if got := o.must("version", "list", "-o", "json"); strings.Contains(got.out, `"id"`) {
		t.Errorf("stored: %s", got.out)
	}
	one := "\ufeff%YAML 1.1\n---\n" + yamlVersion("2024-01-01", "Sort.") + "...\n# the end\n"
	if got := o.runs("version", "register", "-f", file(t, "v.yaml", one)); got.out != "version 2024-01-01 is registered\n" {
		t.Errorf("%+v", got)
	}
}

func TestPromotionIsConfirmed(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	v1, v2 := file(t, "v1", yamlVersion("v1", "One.")), file(t, "v2", yamlVersion("v2", "Two."))
	active := func() (id string) {
		t.Helper()
		list := &adminv1.ListVersionsResponse{}
		if err := protojson.Unmarshal([]byte(o.must("version", "list", "-o", "json").out), list); err != nil {
			t.Fatal(err)
		}
		for _, v := range list.GetVersions() {
			if v.GetActive() {
				id = v.GetId()
			}
		}
		return id
	}
	// Without a terminal nothing is sent, not even the registration.
	o.runs("version", "register", "-f", v1, "--promote").want(t, exitUsage, "give --yes")
	o.runs("version", "get", "v1").want(t, exitNotFound)
	o.must("version", "register", "-f", v1)
	o.runs("version", "promote", "v1").want(t, exitUsage, "give --yes")

	for _, typed := range []string{"", "\n", "n\n", "yess\n", "no\ny\n"} {
		got := o.answers(typed, "version", "promote", "v1")
		got.want(t, exitFailed, "Evaluate new tickets under version v1? None is active now. [y/N] ", "not confirmed")
	}
	if id := active(); id != "" {
		t.Errorf("%s is active", id)
	}
	if got := o.answers("y\n", "version", "promote", "v1"); got.code != 0 || got.out != "version v1 is active\n" {
		t.Errorf("%+v", got)
	}
	got := o.answers(" YES ", "version", "register", "-f", v2, "--promote")
	if got.code != 0 || got.out != "version v2 is active\n" || !strings.HasSuffix(got.err, "version v2 is registered\nEvaluate new tickets under version v2 instead of v1? [y/N] ") {
		t.Errorf("%+v", got)
	}
	// There is nothing to ask.
	if got := o.answers("", "version", "promote", "v2"); got.code != 0 || got.err != "" {
		t.Errorf("%+v", got)
	}
	o.answers("", "version", "promote", "absent").want(t, exitNotFound)
	if id := active(); id != "v2" {
		t.Errorf("%q is active", id)
	}
}

// meddler is somebody at the terminal who takes so long that the world has changed when yes comes.
type meddler struct {
	io.Reader
	meanwhile func()
}

func (m *meddler) Read(p []byte) (int, error) {
	if m.meanwhile != nil {
		m.meanwhile()
		m.meanwhile = nil
	}
	return m.Reader.Read(p)
}

func TestYesIsSaidToReplacingTheNamedVersion(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	for _, id := range []string{"v1", "v2", "v3"} {
		o.must("version", "register", "-f", file(t, id, yamlVersion(id, id)))
	}
	o.must("version", "promote", "v1", "--yes")
	var out, err bytes.Buffer
	code := run(t.Context(), []string{"version", "promote", "v2"}, o.environ(), streams{
		in:  &meddler{Reader: strings.NewReader("y\n"), meanwhile: func() { o.must("version", "promote", "v3", "--yes") }},
		out: &out, err: &err, interactive: true,
	})
	outcome{code, out.String(), err.String()}.want(t, exitConflict, "instead of v1?", "the active version is v3, not v1")
}

func TestAnInterruptedQuestionIsNoYes(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.must("version", "register", "-f", file(t, "v1", yamlVersion("v1", "One.")))
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	typing, closeTyping := io.Pipe()
	defer closeTyping.Close()
	var out, err bytes.Buffer
	code := run(ctx, []string{"version", "promote", "v1"}, o.environ(), streams{
		in: &meddler{Reader: typing, meanwhile: interrupt}, out: &out, err: &err, interactive: true,
	})
	outcome{code, out.String(), err.String()}.want(t, exitInterrupted, "not confirmed")
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	o.must("version", "register", "-f", file(t, "v1", yamlVersion("v1", "One.")))
	o.must("version", "register", "-f", file(t, "v2", yamlVersion("v2", "Two.")))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"version", "p"}, "promote\tMake a version the active one\n:4\n"},
		{[]string{"version", "get", ""}, "v2\tm-v2\nv1\tm-v1\n:4\n"},
		{[]string{"version", "promote", "v1", ""}, ":4\n"},
		{[]string{"version", "promote", "v1", "--expected", ""}, "v2\tm-v2\nv1\tm-v1\n:4\n"},
		{[]string{"version", "list", "-o", ""}, "table\njson\ncsv\n:4\n"},
		{[]string{"version", "register", "-f", ""}, "json\nyaml\nyml\n:8\n"},
	} {
		if got := o.must(append([]string{"__complete"}, c.args...)...); got.out != c.want {
			t.Errorf("%v is completed by %q, want %q", c.args, got.out, c.want)
		}
	}
	if got := execute(t, nil, nil, "__complete", "version", "get", ""); got.code != 0 || got.out != ":1\n" {
		t.Errorf("without a token: %+v", got)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if got := execute(t, nil, nil, "completion", shell); got.code != 0 || !strings.Contains(got.out, "evalctl") {
			t.Errorf("%s: %+v", shell, got)
		}
	}
}

func TestOutputThatCannotBeWrittenIsAFailure(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	for _, form := range []string{"table", "json"} {
		var err bytes.Buffer
		code := run(t.Context(), []string{"version", "list", "-o", form}, o.environ(), streams{in: strings.NewReader(""), out: fails{}, err: &err})
		outcome{code: code, err: err.String()}.want(t, exitFailed, "short write")
	}
}

func TestTheExampleIsAVersion(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	_, example, found := strings.Cut(registerExample, "A file in YAML:\n")
	if !found {
		t.Fatal("there is no example")
	}
	var lines []string
	for line := range strings.Lines(example) {
		lines = append(lines, strings.TrimPrefix(line, "  "))
	}
	path := filepath.Join(t.TempDir(), "triage.yaml")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := o.must("version", "register", "-f", path); got.out != "version triage-2 is registered\n" {
		t.Errorf("%+v", got)
	}
}

package report

import (
	"bytes"
	"strings"

	"github.com/pposiraegi/ppodoctor/diagnose"
)

// Slack's limits. Source: docs.slack.dev, Block Kit reference: blocks in a
// message, header, section and context text; chat.postMessage text.
const (
	slackBlocks  = 50
	slackHeader  = 150
	slackSection = 3000
	slackContext = 2000
	slackText    = 4000
)

// slack is the body of chat.postMessage or of an incoming webhook.
func slack(b *bytes.Buffer, dirty *diagnose.Diagnosis, _ Options) error {
	d, err := cleaned(dirty)
	if err != nil {
		return err
	}
	l := english
	mark := map[string]string{"bad": ":red_circle: ", "warn": ":warning: ", "good": ":white_check_mark: "}[state(d)]
	blocks := []object{
		{"type": "header", "text": object{"type": "plain_text", "text": shorten(d.Verdict, slackHeader)}},
		{"type": "context", "elements": []object{mrkdwn(slackContext, mark+slackEscape(strings.Join(about(d), " · ")))}},
	}
	for _, group := range []struct {
		kind   string
		causes []diagnose.Cause
	}{{l.Cause, d.Causes}, {l.Suspected, d.Suspected}, {l.Risk, d.Risks}} {
		for _, c := range group.causes {
			blocks = append(blocks, object{"type": "divider"},
				section("*"+group.kind+"* "+slackEscape(c.Title)+"\n"+l.Change+" `"+slackEscape(c.Subject.String())+"`\n"+slackEscape(c.Summary)))
			var facts []string
			for _, f := range c.Evidence {
				facts = append(facts, "• "+slackEscape(f.Says))
			}
			if facts != nil {
				blocks = append(blocks, section("*"+l.Evidence+"*\n"+strings.Join(facts, "\n")))
			}
			if len(c.Remedies) > 0 {
				r := c.Remedies[0]
				text := "*" + l.Remedies + "* [" + slackEscape(word(l.Scopes, r.Scope)) + "] " + slackEscape(r.Do)
				if r.Caution != "" {
					text += "\n_" + l.Caution + "_ " + slackEscape(r.Caution)
				}
				blocks = append(blocks, section(text))
			}
			blocks = append(blocks, object{"type": "context", "elements": []object{mrkdwn(slackContext, slackEscape(c.Fingerprint))}})
		}
	}
	for _, s := range d.Unexplained {
		blocks = append(blocks, section("*"+l.Unexplained+"* "+slackEscape(s.Title)+" `"+slackEscape(s.Subject.String())+"`"))
	}
	if len(d.Next) > 0 {
		n := d.Next[0]
		what := n.Grant
		if what == "" {
			what = n.Document
		}
		blocks = append(blocks, section("*"+l.Next+"* `"+slackEscape(what)+"`"))
	}
	if more := len(blocks) - slackBlocks; more > 0 {
		blocks = append(blocks[:slackBlocks-1], section("… "+l.More))
	}
	data, err := marshal(object{"text": shorten(slackEscape(d.Verdict), slackText), "blocks": blocks})
	b.Write(data)
	return err
}

func section(text string) object {
	return object{"type": "section", "text": mrkdwn(slackSection, text)}
}

// mrkdwn is escaped text in which Slack looks for no links or names.
func mrkdwn(most int, text string) object {
	return object{"type": "mrkdwn", "text": shorten(text, most), "verbatim": true}
}

// slackEscape writes the three characters that Slack gives a meaning, and the
// backtick, which has no escape.
// Source: docs.slack.dev, "Formatting message text": escaping.
func slackEscape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "`", "'").Replace(s)
}

// shorten cuts text to a number of characters, outside of an &entity;.
func shorten(s string, most int) string {
	runes := []rune(s)
	if len(runes) <= most {
		return s
	}
	cut := string(runes[:most-1])
	if amp := strings.LastIndexByte(cut, '&'); amp > strings.LastIndexByte(cut, ';') && len(cut)-amp < 6 {
		cut = cut[:amp]
	}
	return cut + "…"
}

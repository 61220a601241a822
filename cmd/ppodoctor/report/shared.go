package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/pposiraegi/ppodoctor/diagnose"
)

// state is how bad it is: something is wrong, something may be, nothing is.
func state(d *diagnose.Diagnosis) string {
	switch {
	case len(d.Causes)+len(d.Unexplained) > 0:
		return "bad"
	case len(d.Suspected)+len(d.Risks)+len(d.Gaps) > 0:
		return "warn"
	}
	return "good"
}

// about is what was looked at, and when.
func about(d *diagnose.Diagnosis) []string {
	c := d.Cluster
	var parts []string
	for _, s := range []string{c.Name, c.Region, c.Account, c.Version, c.Identity} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	if c.Nodes > 0 {
		parts = append(parts, fmt.Sprintf("%d nodes, %d pods", c.Nodes, c.Pods))
	}
	if d.Focus != nil {
		parts = append(parts, d.Focus.String())
	}
	if d.At.IsZero() {
		return parts // files have no clock
	}
	return append(parts, d.At.UTC().Format("2006-01-02 15:04:05 MST"))
}

// clockOf writes times in UTC, with the date where that isn't now's own.
func clockOf(now time.Time) func(time.Time) string {
	today := now.UTC().Format(time.DateOnly)
	return func(at time.Time) string {
		if at.UTC().Format(time.DateOnly) == today {
			return at.UTC().Format("15:04:05")
		}
		return at.UTC().Format("2006-01-02 15:04:05")
	}
}

func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// named is a title with its object, where the title doesn't name it already.
func named(title string, ref diagnose.Ref) string {
	switch {
	case !strings.Contains(title, ref.Name):
		return title + " · " + ref.String()
	case ref.Namespace != "" && !strings.Contains(title, ref.Namespace):
		return title + " · " + ref.Namespace
	}
	return title
}

// lastDay is the last day on which a suppression holds.
func lastDay(s diagnose.Suppression) string { return s.Expires.AddDate(0, 0, -1).Format(time.DateOnly) }

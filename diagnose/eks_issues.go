package diagnose

import "github.com/pposiraegi/ppodoctor/probes"

var eksIssues = &Rule{ID: "eks-reports-issues", Suspects: func(*probes.Facts, []*Finding) []Suspect { return nil }}

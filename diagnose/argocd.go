package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/pposiraegi/ppodoctor/probes"
)

// argocdProjectMissing: an application is of a project that is not there.
var argocdProjectMissing = refusedBy("argocd-project-missing", "is the project of the application not there?",
	regexp.MustCompile(`referenc(?:es|ing) project (?P<project>[\w.-]+) which does not exist|app is not allowed in project "(?P<project2>[^"]+)", or the project does not exist`), nil,
	[]probes.Any{probes.AppProjects}, func(facts *probes.Facts, s Suspect) Answer {
		project := s.Vars["project"] + s.Vars["project2"]
		list, err := probes.AppProjects.Of(facts)
		if err != nil {
			return Answered(true, s.Found...).With("project", project).With("hint", "")
		}
		names := namesOf(probes.AppProjects, facts, s.Subjects[0].Namespace)
		if list.Get(s.Subjects[0].Namespace, project) != nil {
			return Answered(false, Saw("appprojects.argoproj.io", nil, "AppProject %s is there by now", project))
		}
		return Answered(true, append(s.Found, Saw("appprojects.argoproj.io", nil, "the AppProjects are %s", listed(names)))...).With("project", project).With("hint", isHint("AppProject", project, names))
	})

// argocdNotPermitted: the project of an application permits neither its
// destination nor its source.
var argocdNotPermitted = refusedBy("argocd-not-permitted", "does the project not permit the application's source or destination?",
	regexp.MustCompile(`application (?P<what>destination|repo|source)\b(?P<rest>[^\n]*?)(?:do not match any of the allowed destinations|is not permitted|are not permitted) in project '(?P<project>[^']+)'`),
	func(r setback, vars map[string]string) Ref {
		return Ref{Kind: "AppProject", Namespace: r.from.namespace(), Name: vars["project"]}
	}, []probes.Any{probes.AppProjects}, func(facts *probes.Facts, s Suspect) Answer {
		a := Answered(true, s.Found...).With("permits", "")
		list, err := probes.AppProjects.Of(facts)
		if err != nil {
			return a
		}
		if p := list.Get(s.Subjects[0].Namespace, s.Subjects[0].Name); p != nil {
			var words []string
			for _, d := range p.Spec.Destinations {
				words = append(words, strings.TrimSpace(d.Namespace+" at "+d.Server+d.Name))
			}
			says := fmt.Sprintf("it permits the destinations %s and the sources %s", listed(words), listed(p.Spec.SourceRepos))
			a.Evidence = append(a.Evidence, SawObject("appprojects.argoproj.io", p.Namespace, p.Name, "AppProject %s: %s", p.Name, says))
			a = a.With("permits", " "+capital(says)+".")
		}
		return a
	})

// argocdRepositoryDenied: the server of the repository does not take the
// credentials that Argo CD has.
var argocdRepositoryDenied = refusedBy("argocd-repository-denied", "does the repository's server not take Argo CD's credentials?",
	regexp.MustCompile(`(?i)(?P<reason>authentication required[^\n]*|authorization failed[^\n]*|ssh: handshake failed: ssh: unable to authenticate[^\n]*|Permission denied \(publickey[^\n]*|repository not found[^\n]*|invalid username or (?:password|token)[^\n]*)`), nil,
	[]probes.Any{probes.Applications}, func(facts *probes.Facts, s Suspect) Answer {
		a := Answered(true, s.Found...).With("repository", "the repository")
		if list, err := probes.Applications.Of(facts); err == nil {
			if app := list.Get(s.Subjects[0].Namespace, s.Subjects[0].Name); app != nil && len(app.Sources()) > 0 {
				a = a.With("repository", app.Sources()[0].RepoURL)
			}
		}
		return a
	})

// namespace is that of the one object that an evidence is from.
func (e Evidence) namespace() string {
	for _, o := range e.Document.Only {
		if ns, _, ok := strings.Cut(o, "/"); ok {
			return ns
		}
	}
	return ""
}

// argocdFightsAutoscaler: an application is out of sync for the replicas that
// an autoscaler sets, and Argo CD sets them back.
var argocdFightsAutoscaler = &Rule{
	ID: "argocd-fights-autoscaler", Explains: []*Rule{argocdOutOfSync}, Needs: []probes.Any{probes.Applications, probes.Autoscalers},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		scalers, err := probes.Autoscalers.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, e := range effects {
			a := e.Data.(*probes.Application)
			for _, h := range scalers.All() {
				t := h.Spec.ScaleTargetRef
				if !slices.ContainsFunc(a.Status.Resources, func(r struct {
					Group     string `json:"group,omitempty"`
					Kind      string `json:"kind"`
					Namespace string `json:"namespace,omitempty"`
					Name      string `json:"name"`
					Status    string `json:"status,omitempty"`
				},
				) bool {
					return r.Status == "OutOfSync" && r.Kind == t.Kind && r.Name == t.Name && r.Namespace == h.Namespace
				}) {
					continue
				}
				found = append(found, Suspect{
					Subjects: []Ref{e.Subject(), {Kind: "HorizontalPodAutoscaler", Namespace: h.Namespace, Name: h.Name}}, Effects: []*Finding{e},
					Vars:  map[string]string{"target": short(Ref{Kind: t.Kind, Namespace: h.Namespace, Name: t.Name}), "hpa": h.Name, "kindOfTarget": t.Kind},
					Found: []Evidence{SawObject("horizontalpodautoscalers.autoscaling", h.Namespace, h.Name, "HorizontalPodAutoscaler %s scales %s %s, and has made it %d replicas", h.Name, t.Kind, t.Name, h.Status.CurrentReplicas)},
				})
			}
		}
		return found
	},
	Tests: []Test{{
		Asks: "is {target} out of sync, does the autoscaler {hpa} scale it, and does the application not ignore /spec/replicas?",
		Run: func(_ *probes.Facts, s Suspect) Answer {
			return Answered(true, append(s.Found, s.Effects[0].Found...)...)
		},
	}},
}

// argocdOutOfSync: an application that syncs by itself stays out of sync
// without an error, and what is out of sync is healthy.
var argocdOutOfSync = &Rule{
	ID: "argocd-out-of-sync", Needs: []probes.Any{probes.Applications, probes.Autoscalers},
	Suspects: func(facts *probes.Facts, _ []*Finding) []Suspect {
		list, err := probes.Applications.Of(facts)
		scalers, err2 := probes.Autoscalers.Of(facts)
		if err != nil || err2 != nil {
			return nil
		}
		var found []Suspect
		for _, a := range list.All() {
			if a.Status.Sync.Status != "OutOfSync" || a.Spec.SyncPolicy == nil || a.Spec.SyncPolicy.Automated == nil || ignoresReplicas(a) {
				continue
			}
			if refused, _ := appSetbacks(a); len(refused) > 0 {
				continue
			}
			for _, r := range a.Status.Resources {
				scaled := false
				for h := range scalers.In(r.Namespace) {
					scaled = scaled || h.Spec.ScaleTargetRef.Kind == r.Kind && h.Spec.ScaleTargetRef.Name == r.Name
				}
				if r.Status == "OutOfSync" && scaled {
					s := objectSymptom(Ref{Kind: "Application", Namespace: a.Namespace, Name: a.Name}, "applications.argoproj.io", fmt.Sprintf("OutOfSync, though it syncs by itself: %s %s differs", r.Kind, r.Name), nil)
					s.Data = a
					found = append(found, s)
					break
				}
			}
		}
		return found
	},
}

func ignoresReplicas(a *probes.Application) bool {
	for _, d := range a.Spec.IgnoreDifferences {
		if slices.Contains(d.JSONPointers, "/spec/replicas") {
			return true
		}
	}
	return false
}

var argocdRules = []*Rule{argocdOutOfSync, argocdProjectMissing, argocdNotPermitted, argocdRepositoryDenied, argocdFightsAutoscaler}

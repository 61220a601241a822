package diagnose

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// syncPatience is how long External Secrets may take for a new Secret.
const syncPatience = patience

// externalSecretNotSynced: the Secret that a pod waits for is made by an
// ExternalSecret, and that can't be synced.
var externalSecretNotSynced = &Rule{
	ID: "external-secret-not-synced", Explains: []*Rule{secretMissing}, Needs: []probes.Any{probes.ExternalSecrets, probes.SecretStores, probes.ClusterSecretStores, probes.Events},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		list, err := probes.ExternalSecrets.Of(facts)
		if err != nil {
			return nil
		}
		var found []Suspect
		for _, e := range effects {
			wanted := e.Subject()
			for es := range list.In(wanted.Namespace) {
				if es.Makes() != wanted.Name {
					continue
				}
				ref := Ref{Kind: "ExternalSecret", Namespace: es.Namespace, Name: es.Name}
				s := Suspect{
					Subjects: []Ref{ref, wanted}, Effects: []*Finding{e}, Data: unsynced{es, storeOf(facts, es)},
					Vars: map[string]string{
						"secret": wanted.Name, "store": short(es.Store()), "says": conditionWords(meta.FindStatusCondition(es.Status.Conditions, "Ready")), "keys": listed(unsynced{es, nil}.keys()), "workload": e.Vars["workload"],
					},
				}
				// The condition says only that it failed; the event quotes the store.
				if event := lastEvent(facts, ref, "UpdateFailed"); event != nil {
					s.Vars["says"] += " (" + clip(event.Message, 420) + ")"
					s.Found = []Evidence{eventOn(event)}
				}
				s.Vars["advice"] = remoteAdvice(s.Vars["says"])
				found = append(found, s)
			}
		}
		return found
	},
	Tests: []Test{{
		Asks: "is ExternalSecret {name}, which makes Secret {secret}, not ready?",
		Run: func(facts *probes.Facts, s Suspect) Answer {
			es := s.Data.(unsynced)
			ready := meta.FindStatusCondition(es.Status.Conditions, "Ready")
			saw := SawObject("externalsecrets.external-secrets.io", es.Namespace, es.Name, "ExternalSecret %s makes Secret %s from %s; %s", es.Name, es.Makes(), short(es.Store()), conditionWords(ready))
			switch {
			case ready == nil && facts.Source().Now().Sub(es.CreationTimestamp.Time) < syncPatience:
				return Answered(false, saw)
			case ready != nil && ready.Status == metav1.ConditionTrue:
				return Answered(false, saw)
			}
			return Answered(true, saw)
		},
	}},
}

// unsynced is an ExternalSecret and the store that it names, nil if that isn't
// known.
type unsynced struct {
	*probes.ExternalSecret
	store *probes.SecretStore
}

func storeOf(facts *probes.Facts, es *probes.ExternalSecret) *probes.SecretStore {
	ref := es.Store()
	list, err := probes.SecretStores.Of(facts)
	if ref.Kind == "ClusterSecretStore" {
		list, err = probes.ClusterSecretStores.Of(facts)
	}
	if err != nil {
		return nil
	}
	return list.Get(ref.Namespace, ref.Name)
}

// refusedBy reports whether a call that AWS refused External Secrets is what
// the sync needs: of the entries that it reads, or with the controller's own
// identity where the store brings none.
func (u unsynced) refusedBy(d *probes.Denial) bool {
	if d.Component == nil || d.Component.ID != "external-secrets" || !d.Blocks() || u.store == nil || u.store.Spec.Provider.AWS == nil {
		return false
	}
	aws := u.store.Spec.Provider.AWS
	switch {
	case d.Kind != probes.Denied:
		return aws.Auth.JWT == nil
	case strings.HasPrefix(d.Action, "sts:"):
		return aws.Role != "" && aws.Role == d.Resource
	case strings.Contains(d.Resource, ":secret:") || strings.Contains(d.Resource, ":parameter/"):
		return slices.ContainsFunc(u.keys(), func(key string) bool { return strings.Contains(d.Resource, strings.TrimPrefix(key, "/")) })
	}
	return true
}

func conditionWords(c *metav1.Condition) string {
	if c == nil {
		return "it has no Ready condition: nothing has acted on it"
	}
	return strings.TrimSuffix(fmt.Sprintf("%s=%s, %s: %s", c.Type, c.Status, c.Reason, c.Message), ": ")
}

// keys are the entries that the Secret is made from, sorted.
func (u unsynced) keys() []string {
	var keys []string
	for _, d := range u.Spec.Data {
		keys = append(keys, d.RemoteRef.Key)
	}
	for _, d := range u.Spec.DataFrom {
		if d.Extract != nil {
			keys = append(keys, d.Extract.Key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

var (
	remoteMissing = regexp.MustCompile(`(?i)ResourceNotFoundException|ParameterNotFound|can't find the specified secret|secret does not exist|does not have a value|key \S+ does not exist in secret`)
	remoteDenied  = regexp.MustCompile(`(?i)AccessDenied|not authorized to perform`)
)

// remoteAdvice is what to look at first, by what the provider said.
func remoteAdvice(says string) string {
	switch {
	case remoteMissing.MatchString(says):
		return " The entry, or the property in it, is not in the store: its name, or the region of the store, is wrong, or nobody has made it."
	case remoteDenied.MatchString(says):
		return " AWS refuses the read: the role that the store uses lacks the action on this secret, or it is not the role that is meant."
	}
	return ""
}

// secretStoreNotReady: the store that an ExternalSecret reads from is not
// there, or can't be used.
var secretStoreNotReady = &Rule{
	ID: "secret-store-not-ready", Explains: []*Rule{externalSecretNotSynced},
	Suspects: func(_ *probes.Facts, effects []*Finding) []Suspect {
		var list []Suspect
		for _, e := range effects {
			es := e.Data.(unsynced)
			list = addSuspect(list, Suspect{
				Subjects: []Ref{es.Store(), e.Subject()}, Effects: []*Finding{e}, Data: es,
				Vars: map[string]string{"externalSecret": short(e.Subject()), "store": short(es.Store()), "says": "", "elsewhere": "", "provider": ""},
			})
		}
		return list
	},
	Tests: []Test{{
		Asks: "is {store} missing or not ready?", Needs: []probes.Any{probes.SecretStores, probes.ClusterSecretStores},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			ref := s.Subjects[0]
			list, err := probes.SecretStores.Of(facts)
			others, err2 := probes.ClusterSecretStores.Of(facts)
			resource := "secretstores.external-secrets.io"
			if ref.Kind == "ClusterSecretStore" {
				list, err, others, resource = others, err2, list, "clustersecretstores.external-secrets.io"
			}
			if err != nil {
				return CantTell(err)
			}
			store := list.Get(ref.Namespace, ref.Name)
			if store == nil {
				a := Answered(true, SawObject(resource, ref.Namespace, ref.Name, "there is no %s", short(ref))).With("says", "it does not exist")
				if others != nil {
					for _, o := range others.All() {
						if o.Name == ref.Name {
							a = a.With("elsewhere", fmt.Sprintf(" There is %s: spec.secretStoreRef.kind or the namespace is wrong.", short(Ref{Kind: otherStoreKind(ref.Kind), Namespace: o.Namespace, Name: o.Name})))
						}
					}
				}
				return a
			}
			ready := meta.FindStatusCondition(store.Status.Conditions, "Ready")
			saw := SawObject(resource, ref.Namespace, ref.Name, "%s: %s", short(ref), conditionWords(ready))
			if ready != nil && ready.Status == metav1.ConditionTrue {
				return Answered(false, saw)
			}
			a := Answered(true, saw).With("says", conditionWords(ready))
			if aws := store.Spec.Provider.AWS; aws != nil {
				words := fmt.Sprintf(" It reads %s in %s", aws.Service, aws.Region)
				if aws.Role != "" {
					words += " as role " + aws.Role
				}
				if jwt := aws.Auth.JWT; jwt != nil {
					words += " with ServiceAccount " + jwt.ServiceAccountRef.Name
				}
				a = a.With("provider", words+".")
			}
			return a
		},
	}},
}

func otherStoreKind(kind string) string {
	if kind == "ClusterSecretStore" {
		return "SecretStore"
	}
	return "ClusterSecretStore"
}

// externalSecretMissing: External Secrets makes the Secrets of the namespace,
// or is there and makes none, and nothing makes the one that a pod waits for.
var externalSecretMissing = &Rule{
	ID: "external-secret-missing", Explains: []*Rule{secretMissing}, Needs: []probes.Any{probes.Pods},
	Suspects: func(facts *probes.Facts, effects []*Finding) []Suspect {
		pods, err := probes.Pods.Of(facts)
		if err != nil || !slices.ContainsFunc(pods.All(), func(p *corev1.Pod) bool { return probes.IsController(p, "external-secrets") }) {
			return nil
		}
		var found []Suspect
		for _, e := range effects {
			found = append(found, Suspect{
				Subjects: e.Subjects, Effects: []*Finding{e},
				Vars: map[string]string{"workload": e.Vars["workload"], "where": e.Vars["where"], "others": "none"},
			})
		}
		return found
	},
	Tests: []Test{{
		Asks: "is External Secrets installed, and does no ExternalSecret make {name}?", Needs: []probes.Any{probes.ExternalSecrets, probes.Secrets},
		Run: func(facts *probes.Facts, s Suspect) Answer {
			list, err := probes.ExternalSecrets.Of(facts)
			if err != nil {
				return CantTell(err)
			}
			wanted := s.Subjects[0]
			var made []string
			for es := range list.In(wanted.Namespace) {
				if es.Makes() == wanted.Name {
					return Answered(false, SawObject("externalsecrets.external-secrets.io", es.Namespace, es.Name, "ExternalSecret %s makes it", es.Name))
				}
				made = append(made, es.Makes())
			}
			if len(made) == 0 && (byHand(facts, wanted.Namespace) || list.Len() > 0 && !secretsKnown(facts)) {
				return Answered(false, Saw("externalsecrets.external-secrets.io", []string{wanted.Namespace + "/"}, "no Secret of namespace %s comes from External Secrets", wanted.Namespace))
			}
			return Answered(true, Saw("externalsecrets.external-secrets.io", []string{wanted.Namespace + "/"}, "of the %d ExternalSecrets in namespace %s none makes Secret %s; they make: %s", len(made), wanted.Namespace, wanted.Name, listed(made))).With("others", listed(made))
		},
	}},
}

func secretsKnown(facts *probes.Facts) bool {
	_, err := probes.Secrets.Of(facts)
	return err == nil
}

// byHand reports whether a namespace has plain Secrets that no controller
// made: there people make them otherwise.
func byHand(facts *probes.Facts, namespace string) bool {
	list, err := probes.Secrets.Of(facts)
	if err != nil {
		return false
	}
	for s := range list.In(namespace) {
		if s.Type == "Opaque" && len(s.OwnerReferences) == 0 && !strings.HasPrefix(s.Name, "sh.helm") {
			return true
		}
	}
	return false
}

var externalSecretRules = []*Rule{externalSecretNotSynced, secretStoreNotReady, externalSecretMissing}

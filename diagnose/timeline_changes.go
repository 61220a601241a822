package diagnose

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pposiraegi/ppodoctor/probes"
)

// written are kinds beside the findable ones whose objects may be links of a
// chain: that somebody made or wrote them is worth telling.
var written = []kindOf{
	{kind: "Secret", probe: probes.Secrets, list: objectsOf(probes.Secrets)},
	{kind: "ServiceAccount", probe: probes.ServiceAccounts, list: objectsOf(probes.ServiceAccounts)},
	{kind: "ResourceQuota", probe: probes.ResourceQuotas, list: objectsOf(probes.ResourceQuotas)},
	{kind: "LimitRange", probe: probes.LimitRanges, list: objectsOf(probes.LimitRanges)},
	{kind: "StorageClass", probe: probes.StorageClasses, list: objectsOf(probes.StorageClasses)},
	{kind: "PersistentVolume", probe: probes.Volumes, list: objectsOf(probes.Volumes)},
	{kind: "IngressClass", probe: probes.IngressClasses, list: objectsOf(probes.IngressClasses)},
	{kind: "ValidatingWebhookConfiguration", probe: probes.ValidatingWebhooks, list: objectsOf(probes.ValidatingWebhooks)},
	{kind: "MutatingWebhookConfiguration", probe: probes.MutatingWebhooks, list: objectsOf(probes.MutatingWebhooks)},
	{kind: "SecretStore", probe: probes.SecretStores, list: objectsOf(probes.SecretStores)},
	{kind: "ClusterSecretStore", probe: probes.ClusterSecretStores, list: objectsOf(probes.ClusterSecretStores)},
	{kind: "PodDisruptionBudget", probe: probes.DisruptionBudgets, list: objectsOf(probes.DisruptionBudgets)},
}

// revisions tells of the revisions of the StatefulSets and DaemonSets in the
// chains, with what each changed.
func (t *teller) revisions() {
	if !t.facts.Has(probes.ControllerRevisions) {
		return
	}
	list, err := probes.ControllerRevisions.Of(t.facts)
	if err != nil {
		return
	}
	byOwner := map[Ref][]*appsv1.ControllerRevision{}
	for _, r := range list.All() {
		if o := probes.Controller(r); o != nil {
			ref := Ref{Kind: o.Kind, Namespace: r.Namespace, Name: o.Name}
			byOwner[ref] = append(byOwner[ref], r)
		}
	}
	for _, ref := range sortedRefs(byOwner) {
		if !slices.Contains(t.touched, ref) {
			continue
		}
		all := byOwner[ref]
		slices.SortStableFunc(all, func(a, b *appsv1.ControllerRevision) int { return int(a.Revision - b.Revision) })
		for i, r := range all {
			says := fmt.Sprintf("rolled out revision %d", r.Revision)
			if i > 0 {
				if was, is := podSpecOf(all[i-1]), podSpecOf(r); was != nil && is != nil {
					if changed := templateChanges(was, is); len(changed) > 0 {
						says += ": " + strings.Join(changed, "; ")
					}
				}
			}
			t.tell(r.CreationTimestamp.Time, "change", ref, "%s %s", ref.Name, says)
		}
	}
}

// podSpecOf is the pod template that a revision holds as a patch of its owner.
func podSpecOf(r *appsv1.ControllerRevision) *corev1.PodSpec {
	var patch struct {
		Spec struct {
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if len(r.Data.Raw) == 0 || json.Unmarshal(r.Data.Raw, &patch) != nil {
		return nil
	}
	return &patch.Spec.Template.Spec
}

// certificates tells when the certificates of the chains were renewed, and when
// they ended: their Secrets are links, or they are themselves.
func (t *teller) certificates() {
	if !t.facts.Has(probes.Certificates) {
		return
	}
	list, err := probes.Certificates.Of(t.facts)
	if err != nil {
		return
	}
	for _, c := range list.All() {
		ref, secret := certificateRefs(c)
		if !slices.Contains(t.touched, ref) && !slices.Contains(t.touched, secret) {
			continue
		}
		if c.Status.NotBefore != nil {
			t.tell(c.Status.NotBefore.Time, "change", ref, "the certificate in %s was renewed (valid from then)", short(secret))
		}
		if c.Status.NotAfter != nil {
			t.tell(c.Status.NotAfter.Time, "change", ref, "the certificate in %s ended", short(secret))
		}
	}
}

func certificateRefs(c *probes.Certificate) (certificate, secret Ref) {
	return Ref{Kind: "Certificate", Namespace: c.Namespace, Name: c.Name}, Ref{Kind: "Secret", Namespace: c.Namespace, Name: c.Spec.SecretName}
}

// addons tells of EKS add-ons that were made or updated, if they run what a
// chain touches.
func (t *teller) addons() {
	if !t.facts.Has(probes.Addons) {
		return
	}
	list, err := probes.Addons.Of(t.facts)
	if err != nil {
		return
	}
	for _, a := range list.All() {
		runs := map[string][]string{"vpc-cni": {"aws-node"}, "aws-ebs-csi-driver": {"ebs-csi-controller", "ebs-csi-node"}, "aws-efs-csi-driver": {"efs-csi-controller", "efs-csi-node"}}[a.Name]
		if !slices.ContainsFunc(t.touched, func(r Ref) bool { return r.Name == a.Name || slices.Contains(runs, r.Name) }) {
			continue
		}
		what := "was installed"
		at := a.CreatedAt
		if a.ModifiedAt.Sub(a.CreatedAt) > before {
			what, at = "was updated", a.ModifiedAt
		}
		t.tell(at, "change", Ref{Kind: "Addon", Name: a.Name}, "EKS add-on %s %s (now %s)", a.Name, what, a.Version)
	}
}

// nothing says that no change was found up to the first failure.
func (t *teller) nothing(about Ref) {
	if slices.ContainsFunc(t.moments, func(m Moment) bool { return m.Kind == "change" && !m.At.After(t.onset) }) {
		return
	}
	t.moments = append(t.moments, Moment{
		At: t.onset.UTC(), Subject: about, Kind: "note",
		What: fmt.Sprintf("no change was found in the %d hours before the first failure, in what could be read: the fault may be older than its symptom", int(before.Hours())),
	})
}

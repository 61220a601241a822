package scheduling

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// An InstanceType is what is known of an EC2 instance type.
type InstanceType struct {
	Name        string
	Labels      map[string]string // karpenter.k8s.aws/instance-*, arch
	CPU         int64             // vCPUs
	MemoryMiB   int64
	Seen        bool // a node or NodeClaim of it exists: Allocatable is real
	Allocatable corev1.ResourceList
}

type family struct {
	letter      string
	ratio       int64 // GiB of memory per vCPU
	generations []string
	variants    []string // what follows the generation
	largest     int64    // vCPUs
}

// families are the usual instance families by letters, with GiB of memory per
// vCPU and the largest size in vCPUs. It is an approximation, good enough to
// tell "would fit easily" and "can't possibly fit". Source: the EC2 instance
// types page, https://aws.amazon.com/ec2/instance-types/ (2024-12).
var families = []family{
	{"c", 2, []string{"5", "6", "7", "8"}, []string{"", "a", "i", "g", "d", "n", "gn", "gd", "in", "id"}, 384},
	{"m", 4, []string{"5", "6", "7", "8"}, []string{"", "a", "i", "g", "d", "n", "gd", "in", "id", "zn"}, 384},
	{"r", 8, []string{"5", "6", "7", "8"}, []string{"", "a", "i", "g", "d", "n", "b", "gd", "in", "iz"}, 384},
	{"t", 4, []string{"3", "4"}, []string{"", "a", "g"}, 8},
	{"x", 16, []string{"1", "2", "8"}, []string{"", "gd", "idn", "iedn", "g"}, 384},
	{"i", 8, []string{"3", "4", "7", "8"}, []string{"", "en", "i", "g", "ie", "ge"}, 384},
}

var instanceName = regexp.MustCompile(`^([a-z]+)(\d+)([a-z-]*)\.(?:(nano|micro|small|medium|large)|(\d*)xlarge|(metal.*))$`)

// ParseInstanceType estimates a type from its name. ok is false for names whose
// size doesn't follow from it (metal, accelerators, high memory).
func ParseInstanceType(name string) (InstanceType, bool) {
	m := instanceName.FindStringSubmatch(name)
	if m == nil || m[6] != "" {
		return InstanceType{}, false
	}
	var ratio int64
	for _, f := range families {
		if f.letter == m[1] {
			ratio = f.ratio
		}
	}
	if ratio == 0 {
		return InstanceType{}, false
	}
	family, size := m[1]+m[2]+m[3], strings.SplitN(name, ".", 2)[1]
	arch := "amd64"
	if strings.HasPrefix(m[3], "g") || m[1] == "a" {
		arch = "arm64"
	}
	cpu, memory := int64(0), int64(0)
	switch {
	case m[4] == "large":
		cpu, memory = 2, 2*ratio*1024
	case m[4] == "medium" && m[1] == "t":
		cpu, memory = 2, 4*1024
	case m[4] == "medium":
		cpu, memory = 1, ratio*1024
	case m[4] != "": // nano, micro, small exist as burstable only
		cpu, memory = 2, map[string]int64{"nano": 512, "micro": 1024, "small": 2048}[m[4]]
	default:
		n := int64(1)
		if m[5] != "" {
			n, _ = strconv.ParseInt(m[5], 10, 64)
		}
		cpu, memory = 4*n, 4*n*ratio*1024
	}
	t := InstanceType{Name: name, CPU: cpu, MemoryMiB: memory}
	t.Labels = map[string]string{
		corev1.LabelInstanceTypeStable:          name,
		corev1.LabelArchStable:                  arch,
		corev1.LabelOSStable:                    "linux",
		"karpenter.k8s.aws/instance-category":   m[1],
		"karpenter.k8s.aws/instance-family":     family,
		"karpenter.k8s.aws/instance-generation": m[2],
		"karpenter.k8s.aws/instance-size":       size,
		"karpenter.k8s.aws/instance-cpu":        strconv.FormatInt(cpu, 10),
		"karpenter.k8s.aws/instance-memory":     strconv.FormatInt(memory, 10),
	}
	return t, true
}

// allocatable estimates what pods can have of the type: EKS' default
// reservations, and Karpenter's 7.5 % of memory for the VM itself.
// Sources: awslabs/amazon-eks-ami (kube-reserved), karpenter vmMemoryOverheadPercent.
func (t InstanceType) allocatable() corev1.ResourceList {
	if t.Seen {
		return t.Allocatable
	}
	milli := t.CPU*1000 - 60 - 10*min(t.CPU-1, 1) - 5*max(0, min(t.CPU-2, 2)) - 5*max(0, t.CPU-4)/2
	memory := t.MemoryMiB*925/1000 - 255 - 11*58 - 100
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(milli, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(max(0, memory)<<20, resource.BinarySI),
	}
}

// catalog is the types that exist in the cluster, as they are, and the usual
// others as estimates, by name.
func (k *Karpenter) catalog() []InstanceType {
	types := map[string]InstanceType{}
	for _, f := range families {
		for _, g := range f.generations {
			for _, v := range f.variants {
				if v == "" && g >= "6" {
					continue // from the sixth on each names its processor
				}
				for _, size := range []string{"medium", "large", "xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge", "96xlarge"} {
					t, ok := ParseInstanceType(f.letter + g + v + "." + size)
					// Intel and AMD have no 1-vCPU sizes.
					if ok && t.CPU <= min(f.largest, largestOf(g, t.Labels[corev1.LabelArchStable])) && (size != "medium" || f.letter == "t" || t.Labels[corev1.LabelArchStable] == "arm64") {
						types[t.Name] = t
					}
				}
			}
		}
	}
	seen := func(labels map[string]string, capacity, allocatable corev1.ResourceList) {
		name := labels[corev1.LabelInstanceTypeStable]
		if name == "" || len(allocatable) == 0 {
			return
		}
		t := InstanceType{Name: name, Labels: map[string]string{corev1.LabelInstanceTypeStable: name}, Seen: true, Allocatable: allocatable}
		if parsed, ok := ParseInstanceType(name); ok {
			maps.Copy(t.Labels, parsed.Labels)
		}
		for key, value := range labels {
			if strings.HasPrefix(key, "karpenter.k8s.aws/instance-") || key == corev1.LabelArchStable || key == corev1.LabelOSStable {
				t.Labels[key] = value
			}
		}
		cpu, memory := capacity[corev1.ResourceCPU], capacity[corev1.ResourceMemory]
		t.CPU, t.MemoryMiB = cpu.Value(), memory.Value()>>20
		types[name] = t
	}
	for _, n := range k.Nodes {
		seen(n.Labels, n.Status.Capacity, n.Status.Allocatable)
	}
	if k.Claims != nil {
		for _, c := range k.Claims.All() {
			if types[c.Labels[corev1.LabelInstanceTypeStable]].Seen {
				continue
			}
			seen(c.Labels, c.Status.Capacity, c.Status.Allocatable)
		}
	}
	return slices.SortedFunc(maps.Values(types), func(a, b InstanceType) int { return cmp.Compare(a.Name, b.Name) })
}

// largestOf is the vCPUs of the largest size of a generation.
// Source: https://aws.amazon.com/ec2/instance-types/.
func largestOf(generation, arch string) int64 {
	switch {
	case generation >= "8" && arch == "arm64", generation == "6" || generation == "7":
		if generation < "8" && arch == "arm64" {
			return 64
		}
		return 192
	case generation >= "8":
		return 384
	}
	return 96
}

// instanceLabel reports whether a label follows from the instance type.
func instanceLabel(key string) bool {
	return key == corev1.LabelInstanceTypeStable || key == corev1.LabelArchStable || key == corev1.LabelOSStable || strings.HasPrefix(key, "karpenter.k8s.aws/instance-")
}

// allowed are the types of the catalog that the requirements leave. sure is
// false where a requirement goes by a label that the catalog doesn't know, or
// allows types that it doesn't hold.
func allowed(catalog []InstanceType, reqs requirements) (types []InstanceType, sure bool) {
	sure = true
	for _, t := range catalog {
		ok := true
		for key, set := range reqs {
			if !instanceLabel(key) {
				continue
			}
			value, has := t.Labels[key]
			if !has {
				if !set.absent {
					sure = sure && t.Seen
					ok = false
				}
				continue
			}
			ok = ok && set.has(value)
		}
		if ok {
			types = append(types, t)
		}
	}
	names := reqs.of(corev1.LabelInstanceTypeStable)
	if !names.complement {
		for _, name := range names.values {
			if !slices.ContainsFunc(catalog, func(t InstanceType) bool { return t.Name == name }) {
				if t, ok := ParseInstanceType(name); ok {
					types = append(types, t)
				} else {
					sure = false
				}
			}
		}
		return types, sure
	}
	// Without a list of types, sizes or an upper bound there are always larger
	// ones than the catalog holds (metal, high memory, accelerators).
	if sizes := reqs.of("karpenter.k8s.aws/instance-size"); sizes.complement {
		category := reqs.of("karpenter.k8s.aws/instance-category")
		inFamily := reqs.of("karpenter.k8s.aws/instance-family")
		known := func(s valueSet, prefix bool) bool {
			return !s.complement && !slices.ContainsFunc(s.values, func(v string) bool {
				return !slices.ContainsFunc(families, func(f family) bool {
					return v == f.letter || prefix && strings.HasPrefix(v, f.letter) && len(v) > len(f.letter) && v[1] >= '0' && v[1] <= '9'
				})
			})
		}
		bounded := reqs.of("karpenter.k8s.aws/instance-cpu").below < 1<<20 || !reqs.of("karpenter.k8s.aws/instance-cpu").complement
		if !known(category, false) && !known(inFamily, true) && !bounded {
			sure = false
		}
	}
	return types, sure
}

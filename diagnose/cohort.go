package diagnose

// A Cohort compares the failing pods with the healthy ones by one attribute
// that pods have: the nodepool, the security groups of the ENI, the zone.
type Cohort struct {
	By     string  `json:"by"`     // "nodepool", "security groups"
	Splits bool    `json:"splits"` // the failing and the healthy share no value
	Groups []Group `json:"groups"`
}

// A Group is the pods that have one value of a cohort's attribute.
type Group struct {
	Value   string  `json:"value"`
	Failing int     `json:"failing"`
	Healthy int     `json:"healthy"`
	Nodes   []Place `json:"nodes,omitempty"` // the nodes they run on, for a map of the incident
}

// A Place is a node as the incident's story sees it.
type Place struct {
	Name    string `json:"name"`
	Failing int    `json:"failing"`
	Healthy int    `json:"healthy"`
	Holds   []Ref  `json:"holds,omitempty"` // pods worth naming: the failing, and those that they need
}

// A Path is traffic between the pods of two groups of the first cohort.
type Path struct {
	From    string `json:"from"` // a group's value
	To      string `json:"to"`   // a group's value
	What    string `json:"what"` // "53/udp, 53/tcp"
	Blocked bool   `json:"blocked"`
}

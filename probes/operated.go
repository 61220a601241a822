package probes

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An OperatedKind is a kind of object that an operator makes workloads from,
// and how its status says that the operator can't.
type OperatedKind struct {
	Resource, Kind string
	Operator       string   // the name that [IsController] has for it
	Image          string   // a part of its image's name
	Title          string   // "Strimzi"
	Bad            []string // "Type=Status" of the conditions that say so
	Phases         []string // and the words of status.phase that do
	Objects        *Probe[*List[Operated]]
}

// An Operated is an object of such a kind.
type Operated struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Status            struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
		Phase      string             `json:"phase,omitempty"`
		Message    string             `json:"message,omitempty"`
	} `json:"status"`
}

// OperatedKinds are those that are read. Sources: Strimzi's documentation
// ("Custom resource status"); cloudnative-pg api/v1 cluster_types.go;
// rabbitmq/cluster-operator internal/status; prometheus-operator
// pkg/apis/monitoring/v1 types.go (Reconciled); mongodb-kubernetes-operator
// api/v1 mongodbcommunity_types.go; cloud-on-k8s pkg/apis/elasticsearch/v1
// (ElasticsearchResourceInvalid); knative.dev/serving pkg/apis/serving/v1.
var OperatedKinds = operated(
	OperatedKind{Resource: "kafkas.kafka.strimzi.io", Kind: "Kafka", Operator: "strimzi", Image: "strimzi/operator", Title: "Strimzi", Bad: strimziBad},
	OperatedKind{Resource: "kafkaconnects.kafka.strimzi.io", Kind: "KafkaConnect", Operator: "strimzi", Image: "strimzi/operator", Title: "Strimzi", Bad: strimziBad},
	OperatedKind{Resource: "kafkaconnectors.kafka.strimzi.io", Kind: "KafkaConnector", Operator: "strimzi", Image: "strimzi/operator", Title: "Strimzi", Bad: strimziBad},
	OperatedKind{Resource: "kafkatopics.kafka.strimzi.io", Kind: "KafkaTopic", Operator: "strimzi", Image: "strimzi/operator", Title: "Strimzi", Bad: strimziBad},
	OperatedKind{Resource: "kafkausers.kafka.strimzi.io", Kind: "KafkaUser", Operator: "strimzi", Image: "strimzi/operator", Title: "Strimzi", Bad: strimziBad},
	OperatedKind{Resource: "clusters.postgresql.cnpg.io", Kind: "Cluster", Operator: "cloudnative-pg", Image: "cloudnative-pg/cloudnative-pg", Title: "CloudNativePG", Bad: []string{"Ready=False"}},
	OperatedKind{Resource: "rabbitmqclusters.rabbitmq.com", Kind: "RabbitmqCluster", Operator: "rabbitmq-cluster-operator", Image: "rabbitmqoperator/cluster-operator", Title: "RabbitMQ Cluster Operator", Bad: []string{"ReconcileSuccess=False"}},
	OperatedKind{Resource: "prometheuses.monitoring.coreos.com", Kind: "Prometheus", Operator: "prometheus-operator", Image: "prometheus-operator/prometheus-operator", Title: "Prometheus Operator", Bad: []string{"Reconciled=False"}},
	OperatedKind{Resource: "alertmanagers.monitoring.coreos.com", Kind: "Alertmanager", Operator: "prometheus-operator", Image: "prometheus-operator/prometheus-operator", Title: "Prometheus Operator", Bad: []string{"Reconciled=False"}},
	OperatedKind{Resource: "mongodbcommunity.mongodbcommunity.mongodb.com", Kind: "MongoDBCommunity", Operator: "mongodb-kubernetes-operator", Image: "mongodb-kubernetes-operator", Title: "MongoDB Community Operator", Phases: []string{"Failed"}},
	OperatedKind{Resource: "elasticsearches.elasticsearch.k8s.elastic.co", Kind: "Elasticsearch", Operator: "elastic-operator", Image: "eck/eck-operator", Title: "Elastic Cloud on Kubernetes", Phases: []string{"Invalid"}},
	OperatedKind{Resource: "services.serving.knative.dev", Kind: "Service", Operator: "knative", Image: "knative.dev/serving/cmd/controller", Title: "Knative Serving", Bad: []string{"Ready=False"}},
)

var strimziBad = []string{"NotReady=True", "Ready=False"}

func operated(kinds ...OperatedKind) []OperatedKind {
	for i, k := range kinds {
		kinds[i].Objects = actedOnBy[Operated](k.Operator, k.Resource, "whether "+k.Title+" can do what each "+k.Kind+" asks for")
	}
	return kinds
}

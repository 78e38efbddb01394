module crawler-lifecycle.invalid/kinds

go 1.26.0

// Nothing is built of these: kinds of a cluster that the chart makes objects of are read out of them (cluster/binaries.py).
require (
	github.com/kedacore/keda/v2 v2.21.0
	github.com/prometheus-operator/prometheus-operator v0.85.0
	sigs.k8s.io/gateway-api v1.6.3
	sigs.k8s.io/kueue v0.19.1
)

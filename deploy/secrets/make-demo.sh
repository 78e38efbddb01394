#!/bin/sh
# Secrets for the overlay demo, made of random bytes: sh deploy/secrets/make-demo.sh | kubectl create -f -
# Run it only once. `create` refuses to overwrite existing Secrets, because the database keeps the password with which it was
# created, and another password in the Secret would lock everything out.
# The token of an administrator of the gateway is written only to standard error.
set -eu
random() { openssl rand -hex "$1"; }
password=$(random 16)
scheduler=$(random 32)
admin=crawl_$(random 32)
reader=crawl_$(random 32)
sum() { printf %s "$1" | openssl dgst -sha256 -r | cut -d' ' -f1; }
cat <<END
apiVersion: v1
kind: Secret
metadata: {name: crawler-lifecycle-database, namespace: crawler-lifecycle}
stringData:
  url: "mysql+pymysql://lifecycle:$password@demo-database/lifecycle"
  password: "$password"
---
apiVersion: v1
kind: Secret
metadata: {name: crawler-lifecycle-database-owner, namespace: crawler-lifecycle}
stringData:
  url: "mysql+pymysql://lifecycle:$password@demo-database/lifecycle"
---
apiVersion: v1
kind: Secret
metadata: {name: crawler-lifecycle-scheduler, namespace: crawler-lifecycle}
stringData:
  token: "$scheduler"
---
apiVersion: v1
kind: Secret
metadata: {name: crawler-lifecycle-gateway, namespace: crawler-lifecycle}
stringData:
  task-key: "$(random 32)"
  login-key: "$(random 32)"
  tokens.toml: |
    [[token]]
    name = "demo-admin"
    role = "admin"
    project = "*"
    sha256 = "$(sum "$admin")"

    [[token]]
    name = "demo-metrics"
    role = "read"
    project = "*"
    sha256 = "$(sum "$reader")"
---
apiVersion: v1
kind: Secret
metadata: {name: crawler-lifecycle-metrics, namespace: crawler-lifecycle}
stringData:
  gateway-token: "$reader"
  scheduler-token: "$scheduler"
END
echo '# good if all the Secrets are reported as "created"; if they existed already, the former token stays valid' >&2
echo "export LIFECYCLE_GATEWAY__TOKEN=$admin" >&2

#!/bin/sh
# Refuses what only stands for a value of yours in a rendered overlay, each with its field and the file to put yours into:
#   kubectl kustomize deploy/overlays/production | sh deploy/check.sh
# The chart refuses the same on its own.
awk '
function told(line, fix) { sub(/^[ -]+/, "", line); found[++count] = line; fixes[count] = fix }
function end_of_object(  n) {
  for (n = 1; n <= count; n++) {
    # Of a catalogue the images alone: what a crawler gets as its arguments is its own affair.
    if (name ~ /^crawler-catalogue/ && fixes[n] != "image/kustomization.yaml") continue
    if (name ~ /^crawler-catalogue/) fixes[n] = "crawlers.yaml"
    print kind " " name ": " found[n] " only stands for a value of yours: put it into " fixes[n]
    bad = 1
  }
  count = 0; kind = name = ""; head = 0
}
/^---/ { end_of_object(); next }
/^kind: / { kind = $2 }
/^[a-z]/ { head = ($1 == "metadata:") }
head && /^  name: / { name = $2 }
/image: registry\.example/ || /sha256:0000000000000000000000000000000000000000000000000000000000000000/ {
  told($0, "image/kustomization.yaml"); next
}
/(203\.0\.113|198\.51\.100|192\.0\.2)\.[0-9]/ { told($0, "network.yaml"); next }
/server: [^ ]*\.example/ { told($0, "components/shared-volume/volumes.yaml"); next }
/[.\/@-]example([.\/:-]|$)|\/\/example-/ { told($0, "settings.env") }
END { end_of_object(); exit bad }
'

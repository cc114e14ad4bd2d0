#!/bin/sh
# Write the digests of the images that are used today into `.env`, so that tomorrow's are the same.
# Asks the registries; needs Docker with buildx. Run it again to take newer images of the same tags.
set -eu
cd "$(dirname "$0")/.."

pin() { # VARIABLE: prints VARIABLE=IMAGE@DIGEST, of the image that docker-compose.yml has for it
    image=$(sed -n "s/.*\${$1:-\([^}]*\)}.*/\1/p" docker-compose.yml)
    digest=$(docker buildx imagetools inspect --format '{{json .Manifest.Digest}}' "$image" | tr -d '"')
    if ! echo "$digest" | grep -Eqx 'sha256:[0-9a-f]{64}'; then
        echo "no digest of $image: $digest" >&2
        exit 1
    fi
    echo "$1=$image@$digest"
}

umask 077 # it holds secrets, too
new=$(mktemp .env.XXXXXX)
trap 'rm -f "$new"' EXIT
if [ -f .env ]; then
    grep -Ev '^(PYTHON|PROMETHEUS|GRAFANA)_IMAGE=' .env > "$new" || true
fi
for variable in PYTHON_IMAGE PROMETHEUS_IMAGE GRAFANA_IMAGE; do
    pin "$variable" >> "$new"
done
mv "$new" .env
grep -E '^(PYTHON|PROMETHEUS|GRAFANA)_IMAGE=' .env

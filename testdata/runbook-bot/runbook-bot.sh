#!/bin/sh
# A runbook bot: scans, and keeps one ticket for each proven cause.
#
#   runbook-bot.sh FOLDER [arguments of ppodoctor scan]
#
# FOLDER holds the tickets, one file for each fingerprint, so that a second scan
# of the same fault opens no second ticket. Only proven causes get one: what is
# suspected or a risk is for people. A ticket is closed when its cause is gone
# and everything could be seen; if the cause is a risk by now, nothing exercises
# it any more, and the ticket waits for the run that proves the remedy.
# The bot changes nothing in the cluster.
set -eu

[ $# -gt 0 ] || { echo "usage: $0 FOLDER [arguments of ppodoctor scan]" >&2; exit 2; }
tickets=$1
shift
mkdir -p "$tickets"
diagnosis=$(mktemp)
trap 'rm -f "$diagnosis"' EXIT

code=0
ppodoctor scan "$@" -o json >"$diagnosis" || code=$?
[ "$code" -ne 2 ] || exit 2 # it could not run, and has said why
jq -e '.schema == "ppodoctor/v1"' "$diagnosis" >/dev/null || { echo "not a diagnosis of ppodoctor/v1" >&2; exit 2; }

# shellcheck disable=SC2016
ticket='.causes[] | select(.fingerprint == $fp)
  | (.remedies | map(select(.scope == "structural")) + . | first) as $remedy
  | "\(.title)",
    "change:  \(.subject.kind)/\(.subject.namespace // "" | if . == "" then "" else . + "/" end)\(.subject.name)",
    "hurts:   \(.effects | length) workloads",
    "why:     \(.summary)",
    (.evidence[] | "seen:    \(.says)" + (if .command then "\n           $ \(.command)" else "" end)),
    ($remedy | select(. != null) | "do:      \(.do)", (select(.caution) | "caution: \(.caution)"), (.commands // [] | .[] | "           $ \(.)")),
    (.verify[]? | "verify:  \(.expect)\n           $ \(.run)")'

jq -r '.causes[].fingerprint' "$diagnosis" | while read -r fp; do
	[ ! -e "$tickets/$fp" ] || { echo "known    $fp"; continue; }
	jq -r --arg fp "$fp" "$ticket" "$diagnosis" >"$tickets/$fp"
	echo "opened   $fp $(head -n 1 "$tickets/$fp")"
done

for file in "$tickets"/*; do
	[ -e "$file" ] || continue
	fp=${file##*/}
	state=$(jq -r --arg fp "$fp" --arg code "$code" '
		if any(.causes[]; .fingerprint == $fp) then "open"
		elif any(.risks[]; .fingerprint == $fp) then "unproven"
		elif any(.suspected[]; .fingerprint == $fp) or (.gaps | length) > 0 then "unknown"
		else "closed" end' "$diagnosis")
	case $state in
	unproven) echo "unproven $fp: nothing exercises it any more; run its verification" ;;
	unknown) echo "waiting  $fp: not all could be seen" ;;
	closed) echo "closed   $fp" && rm "$file" ;;
	esac
done

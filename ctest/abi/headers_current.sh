#!/bin/sh
# Fails when a committed header is not what the build writes from src/abi.
set -e
cd "$(dirname "$0")/../.."
# writes them again when one of them, or what they are made of, has changed
cargo build --quiet --package ofi
changed=$(git status --porcelain -- include)
if [ -n "$changed" ]; then
	echo "stale headers; commit what the build wrote:" >&2
	echo "$changed" >&2
	git --no-pager diff -- include >&2
	exit 1
fi

#!/bin/bash
# Before Envoy is stopped: no longer ready, then wait for the answers in flight. Envoy by itself
# would cut them. Needs bash alone; the image has no curl.
#
#   drain.sh      $ADMIN_PORT, $SETTLE_S and $PATIENCE_S stand for the numbers below

admin_port=${ADMIN_PORT:-9901}
settle_s=${SETTLE_S:-10}     # until every load balancer knows that it is not ready
patience_s=${PATIENCE_S:-300} # for the longest answer, below terminationGracePeriodSeconds

# METHOD PATH: prints the answer.
admin() {
  exec 3<>"/dev/tcp/127.0.0.1/$admin_port" || return
  printf '%s %s HTTP/1.1\r\nhost: admin\r\nconnection: close\r\ncontent-length: 0\r\n\r\n' "$1" "$2" >&3
  while read -r line || [ -n "$line" ]; do printf '%s\n' "$line"; done <&3
  exec 3>&-
}

# The admin listener's answer is chunked: the number stands on a line with its name.
in_flight() {
  admin GET '/stats?filter=^http.llm.downstream_rq_active$' |
    while read -r name value; do
      if [ "$name" = http.llm.downstream_rq_active: ]; then printf '%s' "${value%$'\r'}"; fi
    done
}

# `/ready` is 503 from here on, and answers close their connections.
admin POST /healthcheck/fail >/dev/null || exit 0
sleep "$settle_s"
end=$((SECONDS + patience_s))
while [ "$SECONDS" -lt "$end" ] && [ "$(in_flight)" -gt 0 ]; do sleep 1; done

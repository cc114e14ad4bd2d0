-- wrk: POST the lines of the file BENCH_BODIES in turn, and print the figures as one JSON line.

local requests = {}
local turn = 0

function init(arguments)
  for line in io.lines(os.getenv("BENCH_BODIES")) do
    requests[#requests + 1] = wrk.format("POST", nil, {["content-type"] = "application/json"}, line)
  end
end

function request()
  turn = turn % #requests + 1
  return requests[turn]
end

function done(summary, latency)
  local e = summary.errors
  local template = '{"requests": %d, "seconds": %.6f, "p50_ms": %.4f, "p99_ms": %.4f, "errors": %d}\n'
  io.write(string.format(
    template, summary.requests, summary.duration / 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    e.connect + e.read + e.write + e.status + e.timeout
  ))
end

-- Adds ids to the queues of a pool, and drops the least urgent ids of the largest queue while there are too many.
-- ARGV: the most ids of a pool; milliseconds after which unused queues are deleted; `all` or `some` after a scan that
-- found all ready jobs or not, else empty; then for each id its tenant, score and member. Those of a tenant are
-- adjacent.
local most, life = tonumber(ARGV[1]), ARGV[2]
if ARGV[3] == 'all' then
  redis.call('HDEL', state, 'more')
elseif ARGV[3] == 'some' then
  redis.call('HSET', state, 'more', 1)
end
if ARGV[3] ~= '' then
  redis.call('DEL', KEYS[4])
end
local i = 4
while ARGV[i] do
  local tenant = ARGV[i]
  local queue = KEYS[6] .. tenant
  while ARGV[i] == tenant do
    redis.call('ZADD', queue, ARGV[i + 1], ARGV[i + 2])
    i = i + 3
  end
  redis.call('PEXPIRE', queue, life)
  count(tenant)
end
while total > most do
  local largest = redis.call('ZREVRANGE', sizes, 0, 1, 'WITHSCORES')
  if not largest[1] then
    break
  end
  local ahead = tonumber(largest[2]) - tonumber(largest[4] or 0)
  redis.call('ZPOPMAX', KEYS[6] .. largest[1], math.max(1, math.min(total - most, ahead)))
  count(largest[1])
  redis.call('HSET', state, 'more', 1)
end
keep(life)

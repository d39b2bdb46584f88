"""The scripts of `RedisSessionRepository`, each of which is one atomic operation."""

# A session is one hash with these fields:
#   session     the session as JSON
#   indexes     the names of the indexes that contain it, separated by spaces
#   length      the version of the log, which is the number of its next event
#   call        the id of the last call that changed it
#   e0, e1, …   the events; those that were deleted are missing
#   i…          the number of the event with this digest of its id
# A sorted set has the numbers of the messages that are not archived. An index is a sorted set of
# session ids by the time of creation, and another one has them by the time of expiry.
#
# redis-py repeats a command when the reply is lost. The call id distinguishes such a repetition
# from a command of another client.

SAVE = """
local key, expiry, id, call = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local session, indexes, created, expires = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local before, after = ARGV[8], ARGV[9]
local old = redis.call('HMGET', key, 'indexes', 'call')
if old[1] and ARGV[3] == 'create' then return old[2] == call and 1 or 0 end
for index in string.gmatch(old[1] or '', '%S+') do
  redis.call('ZREM', before .. index .. after, id)
end
for index in string.gmatch(indexes, '%S+') do
  redis.call('ZADD', before .. index .. after, created, id)
end
redis.call('ZREM', expiry, id)
if expires ~= '' then redis.call('ZADD', expiry, expires, id) end
redis.call('HSET', key, 'session', session, 'indexes', indexes, 'call', call)
redis.call('HSETNX', key, 'length', 0)
return 1
"""

DELETE = """
local key, active, expiry, id, expired = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local indexes = redis.call('HGET', key, 'indexes')
if not indexes then return 0 end
if expired ~= '' then
  local expires = redis.call('ZSCORE', expiry, id)
  if not expires or tonumber(expires) > tonumber(expired) then return 0 end
end
for index in string.gmatch(indexes, '%S+') do
  redis.call('ZREM', ARGV[3] .. index .. ARGV[4], id)
end
redis.call('ZREM', expiry, id)
redis.call('DEL', key, active)
return 1
"""

# ARGV: call id, expected version or nothing, number of events; then for each event the digest of
# its id, m for a message or p for a payload, and its JSON; then for each message that is archived
# or restored a or r, and the digest of its id.
# Returns 1, 0 for a repetition, nothing for a missing session, or the version after a conflict.
APPEND = """
local key, active, call, expected, count = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])
local about = redis.call('HMGET', key, 'length', 'call')
if not about[1] then return {} end
if about[2] == call then return {1} end
local last = 3 + 3 * count
for at = 4, last, 3 do
  if redis.call('HEXISTS', key, 'i' .. ARGV[at]) == 1 then return {0} end
end
if expected ~= '' and expected ~= about[1] then return {-1, about[1]} end
local length = tonumber(about[1])
for at = 4, last, 3 do
  redis.call('HSET', key, 'e' .. length, ARGV[at + 2], 'i' .. ARGV[at], length)
  if ARGV[at + 1] == 'm' then redis.call('ZADD', active, length, length) end
  length = length + 1
end
for at = last + 1, #ARGV, 2 do
  local place = redis.call('HGET', key, 'i' .. ARGV[at + 1])
  if place and ARGV[at] == 'a' then redis.call('ZREM', active, place) end
  if place and ARGV[at] == 'r' then redis.call('ZADD', active, place, place) end
end
redis.call('HSET', key, 'length', length, 'call', call)
return {1}
"""

# Returns the version, the numbers of the active messages, and events: those, or all up to a number.
# Events without the text ARGV[2] are missing.
READ = """
local key, active, until_place, text = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local length = redis.call('HGET', key, 'length')
if not length then return {} end
local shown = redis.call('ZRANGE', active, 0, -1)
local places = shown
if until_place ~= 'active' then
  places = {}
  local last = math.min(tonumber(length), tonumber(until_place)) - 1
  for place = 0, last do places[place + 1] = place end
end
local events = {}
for from = 1, #places, 1000 do
  local fields = {}
  for at = from, math.min(from + 999, #places) do fields[#fields + 1] = 'e' .. places[at] end
  local found = redis.call('HMGET', key, unpack(fields))
  for at = 1, #found do
    local event = found[at]
    events[#events + 1] = event and string.find(event, text, 1, true) and event or false
  end
end
return {length, shown, events}
"""

FORGET = """
local key, active = KEYS[1], KEYS[2]
if redis.call('HGET', key, 'length') ~= ARGV[1] then return 0 end
for at = 2, #ARGV do
  local place = redis.call('HGET', key, 'i' .. ARGV[at])
  redis.call('HDEL', key, 'e' .. place, 'i' .. ARGV[at])
  redis.call('ZREM', active, place)
end
redis.call('HINCRBY', key, 'length', 1)
return 1
"""

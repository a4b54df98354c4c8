// Flotilla's steps by its engine: @welshman/net, app and util. A process has one session, as a browser has.
import { strict as assert } from 'node:assert'
import { mock } from 'node:test'
import WebSocket from 'ws'
import { on, poll } from '@welshman/lib'
import {
  RELAY_ADD_MEMBER, RELAY_INVITE, RELAY_JOIN, RELAY_LEAVE, RELAY_MEMBERS, RELAY_REMOVE_MEMBER,
  ROOM_ADD_MEMBER, ROOM_ADMINS, ROOM_DELETE, ROOM_MEMBERS, ROOM_META, ROOM_REMOVE_MEMBER,
  getTagValue, getTagValues, makeEvent, makeRoomMeta, normalizeRelayUrl, readRoomMeta,
} from '@welshman/util'
import {
  AuthStatus, Pool, SocketEvent, SocketStatus, defaultSocketPolicies, isRelayClosed, isRelayNegErr,
  load, makeSocketPolicyAuth, request,
} from '@welshman/net'
import {
  addRoomMember, clearSessions, createRoom, deleteRoom, editRoom, fetchRelay, hasNegentropy, joinRoom,
  leaveRoom, loginWithNip01, manageRelay, publishThunk, pull, removeRoomMember, repository, sign,
  waitForThunkError,
} from '@welshman/app'
import { Person, keys, url as address } from './people.mjs'

defaultSocketPolicies.push(makeSocketPolicyAuth({ sign }))
const url = normalizeRelayUrl(address)
const people = []

// What went over the socket, for the checks that no call of the library can make.
const pings = []
const { send } = WebSocket.prototype
WebSocket.prototype.send = function (data, ...rest) {
  if (data === '["PING"]') pings.push(data)
  return send.call(this, data, ...rest)
}
const refusals = []
const statuses = []

/** A new session, with connections of its own. */
function session(name) {
  clearSessions()
  Pool.get().clear()
  loginWithNip01(keys[name])
  const socket = Pool.get().get(url)
  on(socket, SocketEvent.Status, status => statuses.push(status))
  on(socket, SocketEvent.Receive, message => {
    if (message[0] === 'NOTICE') assert.fail(`NOTICE ${message[1]}`)
    if (isRelayClosed(message) || isRelayNegErr(message)) refusals.push(message[2])
  })
  return socket
}

async function other(name) {
  const person = await new Person(name).enter()
  people.push(person)
  return person
}

/** src/app/core/commands.ts attemptRelayAccess; the refusal, or nothing. */
async function joins(claim = '') {
  const socket = Pool.get().get(url)
  socket.attemptToOpen()
  await poll({ signal: AbortSignal.timeout(30_000), condition: () => socket.status === SocketStatus.Open })
  await socket.auth.attemptAuth(sign)
  await poll({ signal: AbortSignal.timeout(30_000), condition: () => socket.auth.status === AuthStatus.Ok })
  assert.equal(socket.auth.status, AuthStatus.Ok)
  return does(publishThunk({ event: makeEvent(RELAY_JOIN, { tags: [['claim', claim]] }), relays: [url] }))
}

/** The refusal of a thunk; '' when the relay took it. */
const does = waitForThunkError
const says = (kind, content, tags) => publishThunk({ event: makeEvent(kind, { content, tags }), relays: [url] })

/** core/requests.ts requestRelayClaim */
async function claim() {
  const [event] = await load({ filters: [{ kinds: [RELAY_INVITE], limit: 1 }], relays: [url] })
  return event && getTagValue('claim', event.tags)
}

/** components/RoomForm.svelte: a room is made and edited by the same three events. */
async function submits(room) {
  const refused = []
  for (const [step, isSettled] of [[createRoom, true], [editRoom, false], [joinRoom, true]]) {
    const text = await does(step(url, room))
    refused.push(text)
    if (text) assert.ok(isSettled && text.includes('already'), text)
  }
  return refused
}

const MESSAGES = [9041, 31923, 11, 9]
const SYNC = [
  { kinds: [RELAY_MEMBERS] },
  { kinds: [ROOM_ADMINS, ROOM_MEMBERS] },
  { kinds: [ROOM_META, ROOM_DELETE], limit: 1000 },
  { kinds: [ROOM_ADD_MEMBER, ROOM_REMOVE_MEMBER] },
  { kinds: [RELAY_ADD_MEMBER, RELAY_REMOVE_MEMBER] },
  ...MESSAGES.map(kind => ({ kinds: [kind] })),
  { kinds: [1111], '#K': MESSAGES.map(String) },
  { kinds: [1984, 5, 7], limit: 0 },
]

/** core/sync.ts syncSpace: what is stored, then the same live. `find` waits for an event. */
async function syncs() {
  const events = []
  const waiting = []
  const add = event => {
    events.push(event)
    for (const check of waiting) check()
  }
  await load({ relays: [url], filters: SYNC.map(filter => ({ limit: 100, ...filter })), onEvent: add })
  const controller = new AbortController()
  await new Promise(onEose => {
    request({
      relays: [url], signal: controller.signal, onEvent: add, onEose,
      filters: SYNC.map(filter => ({ ...filter, limit: 0 })),
    })
  })
  return {
    events,
    stop: () => controller.abort(),
    find: wanted => new Promise(resolve => {
      const check = () => {
        const event = events.findLast(wanted)
        if (event) resolve(event)
      }
      waiting.push(check)
      check()
    }),
  }
}

const chapters = {
  /** A space is joined with the code that its owner shares, used, and left. */
  async space() {
    session('owner')
    const information = await fetchRelay(url)
    for (const nip of ['29', '43', '77']) assert.ok(information.supported_nips.includes(nip), nip)
    assert.equal(await joins(), '') // a member's claim is empty
    const code = await claim()
    assert.ok(code)
    assert.equal(await claim(), code)
    const { result } = await manageRelay(url, { method: 'supportedmethods', params: [] })
    for (const method of ['allowpubkey', 'banpubkey', 'changerelayname']) assert.ok(result.includes(method))

    session('alice')
    for (const guess of ['', 'made up']) assert.match(await joins(guess), /^restricted: .*invite code/)
    assert.equal(await claim(), undefined)
    assert.equal(await joins(code), '')
    assert.equal(await joins(), '')
    refusals.length = 0
    const { events, find, stop } = await syncs()
    const { pubkey } = await new Person('alice')
    const list = await find(event => event.kind === RELAY_MEMBERS)
    assert.ok(getTagValues('member', list.tags).includes(pubkey))
    await find(event => event.kind === RELAY_ADD_MEMBER && getTagValue('p', event.tags) === pubkey)
    assert.equal(await does(says(1, 'a note', [])), '')

    assert.equal(await does(publishThunk({ event: makeEvent(RELAY_LEAVE), relays: [url] })), '')
    assert.match(await does(says(1, 'after that', [])), /^restricted: only people known here/)
    assert.ok(!events.some(event => event.kind === RELAY_JOIN || event.kind === RELAY_LEAVE))
    stop()
    session('owner')
    const owned = await syncs()
    const left = await owned.find(event => event.kind === RELAY_REMOVE_MEMBER)
    assert.equal(getTagValue('p', left.tags), pubkey)
    assert.deepEqual(refusals, [])
  },

  /** A room is made, edited, used by two, moderated, pulled by negentropy, and deleted. */
  async room() {
    session('owner')
    const code = await claim()
    session('alice')
    assert.equal(await joins(code), '')
    const bob = await other('stranger')
    const { find, stop } = await syncs()

    assert.deepEqual(await submits(makeRoomMeta({ h: 'tea', name: 'Tea', isPrivate: true })), ['', '', 'duplicate: already a member'])
    const meta = await find(event => event.kind === ROOM_META)
    const room = readRoomMeta(meta)
    assert.deepEqual([room.h, room.name, room.isPrivate, room.isClosed], ['tea', 'Tea', true, false])
    // In the second of the first 9007 a second one is the same event, which the relay has already.
    await poll({ signal: AbortSignal.timeout(30_000), condition: () => Date.now() / 1000 > meta.created_at + 1 })
    const [again] = await submits({ ...room, name: 'Green tea', about: 'no coffee' })
    assert.equal(again, 'duplicate: this group already exists')
    const edited = readRoomMeta(await find(event => event.kind === ROOM_META && event.id !== meta.id))
    assert.deepEqual([edited.name, edited.about, edited.isPrivate], ['Green tea', 'no coffee', true])

    assert.equal(await does(addRoomMember(url, room, bob.pubkey)), '')
    await find(event => event.kind === ROOM_MEMBERS && getTagValues('p', event.tags).includes(bob.pubkey))
    const chat = await bob.watch({ kinds: [7, 9, 11, 1111], '#h': ['tea'] })
    assert.equal(await does(says(9, 'hello', [['h', 'tea'], ['-']])), '')
    await chat.until('hello')
    await bob.say(9, [['h', 'tea']], 'hello yourself')
    const answer = await find(event => event.content === 'hello yourself')
    assert.equal(await does(says(7, '+', [['h', 'tea'], ['e', answer.id], ['p', answer.pubkey], ['k', '9']])), '')
    const thread = says(11, 'which one?', [['h', 'tea'], ['title', 'Tea']])
    assert.equal(await does(thread), '')
    const { id } = thread.event
    const parents = [['K', '11'], ['E', id], ['P', thread.pubkey], ['k', '11'], ['e', id], ['p', thread.pubkey]]
    assert.equal(await does(says(1111, 'oolong', [['h', 'tea'], ...parents])), '')
    await chat.until('oolong')

    // Another device of hers has nothing stored: NIP-77, as the relay announces.
    stop()
    await fetchRelay(url)
    assert.ok(hasNegentropy(url))
    repository.load([])
    session('alice')
    assert.equal(await joins(), '')
    const history = [{ kinds: [7, 9, 11, 1111], '#h': ['tea'] }]
    const pulled = []
    repository.on('update', ({ added }) => pulled.push(...added))
    const found = await pullsAll(history)
    assert.deepEqual(found.map(event => event.content).sort(), ['+', 'hello', 'hello yourself', 'oolong', 'which one?'])

    const later = await syncs()
    assert.equal(await does(removeRoomMember(url, room, bob.pubkey)), '')
    await later.find(event => event.kind === ROOM_REMOVE_MEMBER && getTagValue('p', event.tags) === bob.pubkey)
    assert.deepEqual(await bob.contents({ kinds: [9], '#h': ['tea'] }), [])
    assert.equal(await does(deleteRoom(url, room)), '')
    const deleted = await later.find(event => event.kind === ROOM_DELETE)
    assert.equal(getTagValue('h', deleted.tags), 'tea')

    session('owner')
    const den = makeRoomMeta({ h: 'den', name: 'Den' })
    await submits(den)
    session('alice')
    assert.equal(await joins(), '')
    assert.deepEqual([await does(joinRoom(url, den)), await does(leaveRoom(url, den))], ['', ''])
    assert.deepEqual(refusals, [])
  },

  /** Thirteen minutes with nothing to say: the clock of this process is moved by hand, the relay's is not. */
  async idle() {
    session('owner')
    const bob = await other('stranger')
    const code = await claim()
    const from = Math.floor(Date.now() / 1000)
    const everyTick = setInterval // the real one
    mock.timers.enable({ apis: ['setInterval', 'Date'], now: Date.now() })
    const usual = everyTick(() => mock.timers.tick(10), 10)
    session('alice')
    assert.equal(await joins(code), '')
    assert.deepEqual(await submits(makeRoomMeta({ h: 'tea', name: 'Tea' })), ['', '', 'duplicate: already a member'])
    const { find } = await syncs()
    const socket = Pool.get().get(url)
    const opened = socket._ws
    clearInterval(usual)
    for (let i = 0; i < 26; i++) {
      mock.timers.tick(30_000)
      await new Promise(setImmediate)
    }
    assert.ok(Date.now() / 1000 - from >= 780)
    assert.ok(pings.length > 20, `${pings.length}`)

    await bob.say(9021, [['h', 'tea']])
    await bob.say(9, [['h', 'tea']], 'still there?', from)
    await find(event => event.content === 'still there?')
    const event = makeEvent(9, { content: 'yes', tags: [['h', 'tea']], created_at: from })
    assert.equal(await does(publishThunk({ event, relays: [url] })), '')
    assert.ok(socket._ws === opened && socket.status === SocketStatus.Open)
    assert.deepEqual(statuses.slice(statuses.lastIndexOf(SocketStatus.Opening)), [SocketStatus.Opening, SocketStatus.Open])
    assert.deepEqual(refusals, [])
    mock.timers.reset()
  },
}

async function pullsAll(filters) {
  await pull({ relays: [url], filters })
  return repository.query(filters)
}

const chapter = process.argv[2]
await chapters[chapter]()
for (const person of people) person.leave()
console.log(`done: ${chapter}`)
process.exit(0) // sockets and timers of the library

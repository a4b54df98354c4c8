// Chachi's steps (src/lib/nostr/groups.ts) by its library, NDK: one instance for each person.
import { strict as assert } from 'node:assert'
import WebSocket from 'ws'
import NDK, {
  NDKEvent, NDKPrivateKeySigner, NDKRelayAuthPolicies, NDKRelaySet, NDKSimpleGroup,
  NDKSubscriptionCacheUsage,
} from '@nostr-dev-kit/ndk'
import { keys, url } from './people.mjs'

globalThis.WebSocket = WebSocket // Node 20 has none of its own
const PATIENCE = 60_000
const H = ['h', 'tea', url]

class Person {
  /** Connected; logged in unless told otherwise. */
  async enter(name, { login = true } = {}) {
    const signer = login ? new NDKPrivateKeySigner(keys[name]) : undefined
    this.pubkey = new NDKPrivateKeySigner(keys[name]).pubkey
    let loginId
    let netDebug
    // The OK of the login as it came: the pool's event `relay:authed` is missing at times.
    const ready = new Promise((resolve, reject) => {
      netDebug = (frame, _, direction) => {
        const [verb, subject, accepted, text] = direction ? JSON.parse(frame) : []
        if (direction === 'send' && verb === 'AUTH') loginId = subject.id
        else if (verb === 'AUTH' && !login) resolve()
        else if (verb === 'OK' && subject === loginId) accepted ? resolve() : reject(new Error(text))
      }
    })
    this.ndk = new NDK({ explicitRelayUrls: [url], enableOutboxModel: false, signer, netDebug })
    if (login) this.ndk.relayAuthDefaultPolicy = NDKRelayAuthPolicies.signIn({ ndk: this.ndk })
    await this.ndk.connect(PATIENCE)
    await ready
    this.relays = NDKRelaySet.fromRelayUrls([url], this.ndk)
    return this
  }

  event(kind, tags, content = '') {
    return new NDKEvent(this.ndk, { kind, tags, content })
  }

  /** Publish what must be taken. */
  async say(kind, tags, content) {
    return this.publish(this.event(kind, tags, content))
  }

  async publish(event) {
    await event.publish(this.relays, PATIENCE).catch(error => {
      throw new Error(error.relayErrors ?? error)
    })
    return event
  }

  /** Why an event is refused. */
  async refused(kind, tags, content) {
    return this.say(kind, tags, content).then(() => assert.fail(`${kind} was taken`), error => error.message)
  }

  async fetch(filter) {
    const usage = { closeOnEose: true, groupable: false, cacheUsage: NDKSubscriptionCacheUsage.ONLY_RELAY }
    return [...await this.ndk.fetchEvents(filter, usage, this.relays)]
  }

  /** The reason of a CLOSED; fetchEvents would wait for ever. */
  closed(filter) {
    const sub = this.ndk.subscribe(filter, { groupable: false, relaySet: this.relays }, false)
    return new Promise((resolve, reject) => {
      sub.on('closed', (_, reason) => resolve(reason))
      sub.on('eose', () => reject(new Error('EOSE')))
      sub.start()
    })
  }

  async contents(filter) {
    return (await this.fetch(filter)).map(event => event.content).sort()
  }

  /** Pubkeys in the group's 39001 or 39002. */
  async listed(kind) {
    const [list] = await this.fetch({ kinds: [kind], '#d': ['tea'] })
    return list && list.getMatchingTags('p').map(tag => tag[1]).sort()
  }

  /** useStream: stored, then live; past its EOSE. `until` waits for an event. */
  async stream(filter) {
    const events = []
    const waiting = []
    const options = { closeOnEose: false, groupable: false, cacheUsage: NDKSubscriptionCacheUsage.ONLY_RELAY }
    const sub = this.ndk.subscribe(filter, { ...options, relaySet: this.relays }, false)
    sub.on('event', event => {
      events.push(event)
      for (const check of waiting) check()
    })
    const eose = new Promise(resolve => sub.on('eose', resolve))
    sub.start()
    await eose
    return {
      events,
      until: wanted => new Promise(resolve => {
        const check = () => events.some(wanted) && resolve(events.find(wanted))
        waiting.push(check)
        check()
      }),
    }
  }
}

const enter = (name, options) => new Person().enter(name, options)

/** A private, closed group of alice's. */
async function teaRoom(...flags) {
  const alice = await enter('alice')
  await alice.say(9007, [['h', 'tea']])
  await alice.say(9002, [['h', 'tea'], ['name', 'Tea'], ['about', 'no coffee'], ...flags.map(flag => [flag])])
  return alice
}

const chapters = {
  /** Made, edited, listed; its admins and members by their lists; discovered by whom one follows. */
  async group() {
    const alice = await teaRoom('private', 'restricted', 'closed')
    const bob = await enter('stranger')
    assert.match(await alice.refused(9007, [['h', 'tea']], 'again'), /duplicate: this group already exists/)
    const [meta] = await bob.fetch({ kinds: [39000] })
    assert.deepEqual([meta.tagValue('d'), meta.tagValue('name'), meta.tagValue('about')], ['tea', 'Tea', 'no coffee'])
    for (const flag of ['private', 'restricted', 'closed']) assert.ok(meta.getMatchingTags(flag).length)
    const { self } = await (await fetch(url.replace('ws', 'http'), { headers: { Accept: 'application/nostr+json' } })).json()
    assert.equal(meta.pubkey, self)

    const lists = { kinds: [39001, 39002], '#d': ['tea'] }
    assert.equal(await bob.listed(39002), undefined)
    const outside = await enter('robot', { login: false })
    assert.match(await outside.closed(lists), /^auth-required:/)
    await alice.say(9000, [['h', 'tea'], ['p', bob.pubkey]])
    const everybody = [alice.pubkey, bob.pubkey].sort()
    assert.deepEqual(await alice.listed(39002), everybody)
    assert.deepEqual(await bob.listed(39002), everybody)
    assert.deepEqual(await bob.listed(39001), [alice.pubkey])
    const [roles] = await bob.fetch({ kinds: [39003], '#d': ['tea'] })
    assert.ok(roles.getMatchingTags('role').some(tag => tag[1] === 'admin'))
    await alice.say(9000, [['h', 'tea'], ['p', bob.pubkey, 'admin']])
    assert.deepEqual(await bob.listed(39001), everybody)
    const [found] = await bob.fetch({ kinds: [39002], '#p': [alice.pubkey] })
    assert.equal(found.tagValue('d'), 'tea')

    await alice.say(9001, [['h', 'tea'], ['p', bob.pubkey]])
    assert.deepEqual(await alice.listed(39001), [alice.pubkey])
    await alice.say(9008, [['h', 'tea']])
    assert.deepEqual((await alice.fetch({ kinds: [9008], '#h': ['tea'] })).length, 1)

    // The library's own class; its 9000 is made and not published.
    const group = new NDKSimpleGroup(alice.ndk, alice.relays)
    await group.createGroup()
    await group.setMetadata({ name: 'Coffee' })
    assert.equal((await group.getMetadata()).name, 'Coffee')
    await alice.publish(await group.addUser(alice.ndk.getUser({ pubkey: bob.pubkey })))
    assert.deepEqual((await group.getMembers()).map(user => user.pubkey).sort(), everybody)
  },

  /** Asked to join, invited, and an invite withdrawn by a kind 5 with its code. */
  async invites() {
    const alice = await teaRoom('private', 'restricted', 'closed')
    const bob = await enter('stranger')
    const robot = await enter('robot')
    const codes = await alice.stream({ kinds: [9009], '#h': ['tea'] })
    const activity = await alice.stream({ kinds: [9, 9000, 9001, 9008], '#h': ['tea'], limit: 50 })
    assert.match(await bob.refused(9021, [['h', 'tea']]), /restricted: /)
    const soon = `${Math.floor(Date.now() / 1000) + 3600}`
    for (const code of ['come in, please', 'and you, too']) await alice.say(9009, [H, ['code', code], ['expiration', soon]])
    await codes.until(event => event.tagValue('code') === 'and you, too')

    await bob.say(9021, [['h', 'tea'], ['code', 'come in, please']])
    await activity.until(event => event.kind === 9000 && event.tagValue('p') === bob.pubkey)
    assert.deepEqual(await bob.listed(39002), [alice.pubkey, bob.pubkey].sort())

    await alice.say(5, [['h', 'tea'], ['code', 'and you, too']], 'Revoked invite code: and you, too')
    const [withdrawn] = await alice.fetch({ kinds: [5], '#h': ['tea'] })
    assert.equal(withdrawn.tagValue('code'), 'and you, too')
    assert.match(await robot.refused(9021, [['h', 'tea'], ['code', 'and you, too']]), /restricted: /)
    const left = (await alice.fetch({ kinds: [9009], '#h': ['tea'] })).map(event => event.tagValue('code'))
    assert.ok(!left.includes('and you, too'), `${left}`)

    // Chachi has a call that looks for a code, and no use of it.
    assert.match(await alice.closed({ kinds: [9009], '#h': ['tea'], '#code': ['come in, please'] }), /^unsupported:/)
    await bob.say(9022, [['h', 'tea']])
    await activity.until(event => event.kind === 9001 && event.tagValue('p') === bob.pubkey)
    assert.deepEqual(await alice.listed(39002), [alice.pubkey])
  },

  /** Messages, reactions without `h`, deletions; the relay's own chat `_`. */
  async chat() {
    const alice = await teaRoom('private')
    const bob = await enter('stranger')
    const outside = await enter('robot', { login: false })
    const asking = await alice.stream({ kinds: [9021], '#h': ['tea'] })
    await bob.say(9021, [['h', 'tea']])
    await asking.until(event => event.pubkey === bob.pubkey)
    const chat = await bob.stream({ kinds: [9, 9321, 9000, 9001, 9008], '#h': ['tea'], limit: 50 })
    const hello = await alice.say(9, [H], 'hello #tea')
    await chat.until(event => event.content === 'hello #tea')
    const seen = await chat.until(event => event.id === hello.id)
    await bob.publish(await seen.react('+', false)) // with the `h` of the message
    await bob.say(7, [['e', hello.id], ['p', alice.pubkey], ['k', '9']], '🍵')
    const reactions = { kinds: [7], '#e': [hello.id] }
    assert.deepEqual(await alice.contents(reactions), ['+', '🍵'])
    assert.deepEqual(await outside.contents(reactions), [])
    assert.match(await outside.closed({ kinds: [9], '#h': ['tea'] }), /^auth-required:/)

    const theirs = await bob.say(9, [H, ['q', hello.id, url, alice.pubkey]], 'coffee')
    const deletion = alice.event(9005, [['h', 'tea']])
    deletion.tag(theirs)
    assert.ok(deletion.tags.find(tag => tag[0] === 'e').length > 2)
    await alice.publish(deletion)
    const own = await bob.say(9, [H], 'no, wait')
    await bob.say(5, [['e', own.id], ['k', '9']])
    assert.deepEqual(await alice.contents({ kinds: [9], '#h': ['tea'] }), ['hello #tea'])

    await alice.say(9007, [['h', '_']])
    await alice.say(9002, [['h', '_'], ['name', 'everybody']])
    await bob.say(9021, [['h', '_']])
    await bob.say(9, [['h', '_', url], ['-']], 'hello, relay')
    assert.deepEqual(await outside.contents({ kinds: [9], '#h': ['_'] }), ['hello, relay'])
  },
}

const chapter = process.argv[2]
await chapters[chapter]()
console.log(`done: ${chapter}`)
process.exit(0) // sockets and timers of the library

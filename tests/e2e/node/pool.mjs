// Chapters about nostr-tools itself: SimplePool over two relays, nip29's parsing, nip42's login.
import { strict as assert } from 'node:assert'
import * as nip11 from 'nostr-tools/nip11'
import { naddrEncode } from 'nostr-tools/nip19'
import * as nip29 from 'nostr-tools/nip29'
import { makeAuthEvent } from 'nostr-tools/nip42'
import { queryWebAddress, useFetchImplementation } from 'nostr-tools/nipad'
import { SimplePool } from 'nostr-tools/pool'
import { Person, now, url, urls } from './people.mjs'

const [one, two] = urls
const people = []

async function enter(name, options) {
  const person = await new Person(name).enter(options)
  people.push(person)
  return person
}

/** A pool that logs in by itself, as this person. */
const poolOf = person =>
  new SimplePool({ automaticallyAuth: () => async template => person.sign(template) })

const note = (person, content, more = 0) =>
  person.event(1, [['t', 'pool']], content, now + more)

const chapters = {
  /** What stands on both relays comes once; what stands on one comes too. */
  async several() {
    const alice = new Person('alice')
    const pool = poolOf(alice)
    try {
      const everywhere = note(alice, 'on both')
      assert.deepEqual(await Promise.all(pool.publish([one, two], everywhere)), ['', ''])
      const [first, second] = [note(alice, 'on the first', 1), note(alice, 'on the second', 2)]
      assert.deepEqual(await Promise.all(pool.publish([one], first)), [''])
      assert.deepEqual(await Promise.all(pool.publish([two], second)), [''])

      const filter = { kinds: [1], '#t': ['pool'] }
      const found = await pool.querySync([one, two], filter, { maxWait: 15000 })
      assert.deepEqual(found.map(event => event.content).sort(), ['on both', 'on the first', 'on the second'])
      assert.equal((await pool.get([one, two], { ids: [second.id] })).content, 'on the second')

      const live = []
      let heard = () => {}
      await new Promise(eose => {
        pool.subscribeMany([one, two], { ...filter, since: now + 10 }, {
          oneose: eose,
          onevent: event => {
            live.push(event.content)
            heard()
          },
        })
      })
      const news = [note(alice, 'news', 11), note(alice, 'end', 12)]
      for (const event of news) await Promise.all(pool.publish([one, two], event))
      while (!live.includes('end')) await new Promise(resolve => { heard = resolve })
      assert.deepEqual(live, ['news', 'end'])

      const again = await Promise.all(pool.publish([one, two], everywhere))
      assert.deepEqual(again, Array(2).fill('duplicate: already have this event'))
    } finally {
      pool.destroy()
    }
  },

  /** loadGroup looks for the signer of 39000-39003 in NIP-11's `pubkey`, which is the owner here. */
  async group() {
    const owner = await enter('owner')
    const alice = await enter('alice')
    const publish = async template =>
      assert.equal(await owner.relay.publish(owner.sign(template)), '')
    await publish(nip29.generateCreateGroupEventTemplate('tea'))
    const metadata = {
      id: 'tea', pubkey: '', name: 'Tea room', about: 'for tea', isPrivate: true,
      isRestricted: true, isClosed: true,
    }
    await publish(nip29.generateEditGroupMetadataEventTemplate({ relay: url, metadata }))
    await publish(nip29.generatePutUserEventTemplate('tea', alice.pubkey, ['moderator']))

    const pool = poolOf(alice)
    try {
      const information = await nip11.fetchRelayInformation(url)
      assert.notEqual(information.pubkey, information.self)
      const asked = { pool, groupReference: { id: 'tea', host: url }, normalizedRelayURL: url }
      await assert.rejects(nip29.loadGroup({ ...asked, relayInformation: information }), /not found/)
      const group = await nip29.loadGroup({
        ...asked, relayInformation: { ...information, pubkey: information.self },
      })
      const { name, about, isPrivate, isRestricted, isClosed, isHidden } = group.metadata
      assert.deepEqual(
        { name, about, isPrivate, isRestricted, isClosed, isHidden: isHidden ?? false },
        { name: 'Tea room', about: 'for tea', isPrivate: true, isRestricted: true, isClosed: true,
          isHidden: false },
      )
      const members = group.members.map(member => member.pubkey).sort()
      assert.deepEqual(members, [owner.pubkey, alice.pubkey].sort())
      const admins = Object.fromEntries(group.admins.map(admin => [admin.pubkey, admin.label]))
      assert.equal(admins[owner.pubkey], 'admin')
      assert.ok(!(alice.pubkey in admins) || admins[alice.pubkey] === 'moderator')

      const code = nip29.encodeGroupReference(group.reference)
      assert.equal(nip29.parseGroupCode(code).id, 'tea')
    } finally {
      pool.destroy()
    }
  },

  /** A closed group by its naddr; joined with a code, written in, and left. */
  async invite() {
    const [owner, alice] = [await enter('owner'), await enter('alice')]
    const publish = (person, template) => person.relay.publish(person.sign(template))
    await publish(owner, nip29.generateCreateGroupEventTemplate('tea'))
    await publish(owner, nip29.generateEditGroupMetadataEventTemplate({
      relay: url, metadata: { id: 'tea', pubkey: '', name: 'Tea', isPrivate: true, isClosed: true },
    }))
    await assert.rejects(publish(alice, nip29.generateGroupJoinRequestEventTemplate('tea')), /restricted: /)
    await publish(owner, nip29.generateCreateInviteEventTemplate('tea', 'come to tea'))
    const asked = nip29.generateGroupJoinRequestEventTemplate('tea', 'come to tea')
    assert.equal(await publish(alice, asked), '')

    const information = await nip11.fetchRelayInformation(url)
    const { self } = information
    const code = naddrEncode({ kind: 39000, pubkey: self, identifier: 'tea', relays: [url] })
    const pool = poolOf(alice)
    try {
      const group = await nip29.loadGroup({
        pool, groupReference: nip29.parseGroupCode(code), normalizedRelayURL: url,
        relayInformation: { ...information, pubkey: self },
      })
      assert.deepEqual([group.metadata.name, group.metadata.pubkey], ['Tea', self])
      assert.deepEqual(group.members.map(member => member.pubkey).sort(), [owner.pubkey, alice.pubkey].sort())
      const heard = await owner.watch({ kinds: [9], '#h': ['tea'] })
      await alice.say(9, [['h', 'tea']], 'hello')
      await heard.until('hello')
      assert.equal(await publish(alice, nip29.generateGroupLeaveRequestEventTemplate('tea')), '')
      assert.deepEqual(await alice.contents({ kinds: [9], '#h': ['tea'] }), [])
    } finally {
      pool.destroy()
    }
  },

  /** A group by its web address; nipad.ts asks https on the port of its own, hence the fetch. */
  async address() {
    const alice = await enter('alice')
    for (const [id, ...flags] of [['tea'], ['green tea'], ['den', ['hidden']]]) {
      await alice.say(9007, [['h', id]])
      await alice.say(9002, [['h', id], ['name', id], ...flags])
    }
    const here = url.replace(/^ws/, 'http')
    useFetchImplementation(asked => fetch(asked.replace('https://relay.example', here)))
    const { self } = await nip11.fetchRelayInformation(url)
    for (const [path, id] of [['tea', 'tea'], ['green%20tea', 'green tea']]) {
      const { filter, relays } = await queryWebAddress(`https://relay.example/${path}`)
      assert.deepEqual(filter, { kinds: [39000], '#d': [id], authors: [self], limit: 1 })
      const pool = new SimplePool()
      assert.equal(nip29.parseGroupMetadataEvent(await pool.get(relays, filter)).name, id)
      pool.destroy()
    }
    for (const path of ['den', 'never', '']) {
      assert.equal(await queryWebAddress(`relay.example/${path}`), null)
    }
  },

  /** By hand, wrongly by hand, and by the relay object itself after `auth-required:`. */
  async login() {
    const alice = await enter('alice', { login: false })
    const { relay } = alice
    const own = { kinds: [1059], '#p': [alice.pubkey] }
    assert.match((await alice.query(own)).closed, /^auth-required:/)

    const stale = alice.sign(makeAuthEvent('ws://elsewhere.example', relay.challenge))
    await assert.rejects(relay.auth(async () => stale), /^Error: invalid: relay/)
    const right = async template => alice.sign(template)
    await assert.rejects(relay.auth(right), /^Error: invalid: relay/) // it remembers the failure
    relay.authPromise = undefined
    assert.equal(await relay.auth(right), '')
    assert.deepEqual(await alice.query(own), { events: [], closed: 'closed by caller' })

    const bob = new Person('stranger')
    const silent = new SimplePool()
    const pool = poolOf(bob)
    try {
      const mine = bob.sign({ kind: 1, tags: [['-']], content: 'mine alone', created_at: now })
      const [refused] = await Promise.allSettled(silent.publish([url], mine))
      assert.match(refused.reason.message, /^auth-required:/)
      const onauth = async template => bob.sign(template)
      assert.deepEqual(await Promise.all(silent.publish([url], mine, { onauth })), [''])
      const found = await pool.querySync(
        [url], { kinds: [1059], '#p': [bob.pubkey] }, { maxWait: 15000 },
      )
      assert.deepEqual(found, [])
    } finally {
      silent.destroy()
      pool.destroy()
    }
  },
}

const chapter = process.argv[2]
await chapters[chapter]()
for (const person of people) person.leave()
console.log(`done: ${chapter}`)
process.exit(0) // nostr-tools leaves timers of its own behind

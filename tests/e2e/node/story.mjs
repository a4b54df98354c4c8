// The story of a group and its agent, each chapter on a fresh relay: node story.mjs CHAPTER
import { strict as assert } from 'node:assert'
import * as nip29 from 'nostr-tools/nip29'
import * as nip11 from 'nostr-tools/nip11'
import { SimplePool } from 'nostr-tools/pool'
import { Person, now, url } from './people.mjs'
import { config, groupMemory, preference, tool } from './memory.mjs'

const KINDS = [9, 30078, 30093, 30095]
const H = { '#h': ['tea'] }
const people = []

async function enter(name, options) {
  const person = await new Person(name).enter(options)
  people.push(person)
  return person
}

/** The private group `tea` with alice in it, the robot as its agent: nip29's templates. */
async function teaRoom() {
  const owner = await enter('owner')
  const robot = await enter('robot')
  const alice = await enter('alice')
  const publish = async template => assert.equal(await owner.relay.publish(owner.sign(template)), '')
  await publish(nip29.generateCreateGroupEventTemplate('tea'))
  const metadata = {
    id: 'tea', pubkey: '', name: 'Tea room', isPrivate: true, isRestricted: true, isClosed: true,
  }
  await publish(nip29.generateEditGroupMetadataEventTemplate({ relay: url, metadata }))
  await publish(nip29.generatePutUserEventTemplate('tea', alice.pubkey))
  await publish(nip29.generatePutUserEventTemplate('tea', robot.pubkey, ['agent']))
  const remove = pubkey => publish(nip29.generateRemoveUserEventTemplate('tea', pubkey))
  return { owner, robot, alice, remove }
}

async function remembered(robot) {
  const said = [
    [9, [['h', 'tea']], 'the kettle is on'], groupMemory('to drink tea', now), tool('sunny', now),
    preference('oolong', now),
  ]
  for (const about of said) await robot.say(...about)
  return said.map(about => about[2])
}

const chapters = {
  async slots() {
    const { robot } = await teaRoom()
    const first = tool('sunny', now)
    await robot.say(...first, now)
    assert.equal(
      await robot.relay.publish(robot.event(...first, now + 1)),
      'duplicate: already stored under this d',
    )
    const { events } = await robot.query({ kinds: [30095], ...H })
    assert.deepEqual(events.map(event => event.created_at), [now])
    await robot.say(...preference('green', now), now + 5)
    await robot.say(...preference('oolong', now + 10), now)
    assert.deepEqual(await robot.contents({ kinds: [30093] }), [preference('oolong', now + 10)[2]])
    assert.equal(
      await robot.refused(robot.event(...preference('black', now + 9), now + 20)),
      'duplicate: a newer version is stored',
    )
  },

  async member() {
    const { robot, alice } = await teaRoom()
    const live = await alice.watch({ kinds: KINDS, ...H })
    const said = await remembered(robot)
    for (const content of said) await live.until(content)
    assert.deepEqual(live.got, said)
    assert.deepEqual((await alice.contents({ kinds: KINDS, ...H })).sort(), [...said].sort())
    assert.equal(await alice.count({ kinds: KINDS, ...H }), said.length)
    await alice.say(9, [['h', 'tea']], 'coming')
    assert.deepEqual(await robot.contents({ authors: [alice.pubkey], ...H }), ['coming'])
  },

  async outsiders() {
    const { owner, robot } = await teaRoom()
    await remembered(robot)
    const { events } = await robot.query({ kinds: KINDS, ...H })
    assert.equal(events.length, 4)
    const ids = events.map(event => event.id)
    const unknown = await enter('stranger', { login: false })
    const stranger = await enter('stranger')
    for (const [outsider, word] of [[unknown, 'auth-required:'], [stranger, 'restricted:']]) {
      const { events: found, closed } = await outsider.query(H)
      assert.deepEqual(found, [])
      assert.ok(closed?.startsWith(word), closed)
      for (const filter of [
        { ids }, { kinds: [9] }, { kinds: KINDS }, { authors: [robot.pubkey] }, { kinds: KINDS, ...H },
        { '#d': ['tea:preference'] }, { kinds: [39002], '#d': ['tea'] },
      ]) {
        assert.deepEqual(await outsider.contents(filter), [], JSON.stringify(filter))
        const count = await outsider.count(filter)
        assert.ok(count === 0 || `${count}`.startsWith(word), `${JSON.stringify(filter)} ${count}`)
      }
      const live = await outsider.watch(
        { kinds: [9] }, { authors: [robot.pubkey] }, { kinds: [1], '#t': [word] },
      )
      await robot.say(9, [['h', 'tea']], `not for ${word}`)
      await owner.say(1, [['t', word]], 'for everybody')
      await live.until('for everybody')
      assert.deepEqual(live.got, ['for everybody'])
      assert.match(await outsider.refused(outsider.event(9, [['h', 'tea']], 'hello?')), /^restricted:/)
    }
  },

  async removed() {
    const { owner, robot, alice, remove } = await teaRoom()
    const wanted = [{ kinds: KINDS, ...H }, { kinds: [1] }]
    const [hers, theirs] = [await alice.watch(...wanted), await owner.watch(...wanted)]
    await robot.say(9, [['h', 'tea']], 'to all of you')
    await hers.until('to all of you')
    await remove(alice.pubkey)
    await robot.say(9, [['h', 'tea']], 'not to alice')
    await robot.say(1, [], 'marker')
    await Promise.all([hers.until('marker'), theirs.until('marker')])
    assert.deepEqual(hers.got, ['to all of you', 'marker'])
    assert.deepEqual(theirs.got, ['to all of you', 'not to alice', 'marker'])
    assert.deepEqual(await alice.contents({ kinds: KINDS }), [])
  },

  async config() {
    const { owner, robot, alice } = await teaRoom()
    for (const person of [robot, alice]) {
      assert.equal(
        await person.refused(person.event(...config('all'))),
        'restricted: only an owner may write config',
      )
    }
    const filter = { kinds: [30078], '#d': ['snowclaw:config:global'] }
    const live = await robot.watch(filter)
    const hers = await alice.watch({ kinds: [30078, 1] })
    await owner.say(...config('mention'))
    await owner.say(1, [], 'marker')
    await Promise.all([live.until(config('mention')[2]), hers.until('marker')])
    assert.deepEqual(hers.got, ['marker'])
    for (const person of [owner, robot]) {
      assert.deepEqual(await person.contents(filter), [config('mention')[2]])
    }
    const { events, closed } = await alice.query(filter)
    assert.deepEqual(events, [])
    assert.ok(closed?.startsWith('restricted:'), closed)
  },

  /** SimplePool with automatic login, and nip29's own way to load a group. */
  async pool() {
    const { robot, alice, owner } = await teaRoom()
    await remembered(robot)
    const information = await nip11.fetchRelayInformation(url)
    assert.ok(information.supported_nips.includes(29))
    const pool = new SimplePool({ automaticallyAuth: () => async event => alice.sign(event) })
    const late = new Person('stranger')
    const outside = new SimplePool({ automaticallyAuth: () => async event => late.sign(event) })
    try {
      // nostr-tools takes NIP-11's `pubkey` for the signer of 39000-39003; since 2026-01 it is `self`.
      const group = await nip29.loadGroup({
        pool, groupReference: { id: 'tea', host: url }, normalizedRelayURL: url,
        relayInformation: { ...information, pubkey: information.self },
      })
      assert.equal(group.metadata.name, 'Tea room')
      assert.ok(group.metadata.isPrivate && group.metadata.isRestricted && group.metadata.isClosed)
      const members = group.members.map(member => member.pubkey)
      assert.deepEqual(members.sort(), [owner, robot, alice].map(each => each.pubkey).sort())
      const found = await pool.querySync([url], { kinds: KINDS, ...H }, { maxWait: 15000 })
      assert.equal(found.length, 4)
      assert.deepEqual(await outside.querySync([url], { kinds: KINDS, ...H }, { maxWait: 15000 }), [])
      const sent = pool.publish([url], alice.event(9, [['h', 'tea']], 'by the pool'))
      assert.deepEqual(await Promise.all(sent), [''])
    } finally {
      pool.destroy()
      outside.destroy()
    }
  },
}

const chapter = process.argv[2]
await chapters[chapter]()
for (const person of people) person.leave()
console.log(`done: ${chapter}`)
process.exit(0) // nostr-tools leaves timers of its own behind

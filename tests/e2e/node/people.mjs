// People with a connection by nostr-tools. Keys and the relays' URLs come on stdin as one JSON.
import { readFileSync } from 'node:fs'
import { strict as assert } from 'node:assert'
import WebSocket from 'ws'
import { finalizeEvent, getPublicKey } from 'nostr-tools/pure'
import { Relay, useWebSocketImplementation as relaysUse } from 'nostr-tools/relay'
import { useWebSocketImplementation as poolsUse } from 'nostr-tools/pool'

relaysUse(WebSocket) // Node 20 has none of its own
poolsUse(WebSocket)

export const { urls, keys } = JSON.parse(readFileSync(0, 'utf8'))
export const [url] = urls
export const now = Math.floor(Date.now() / 1000)
const PATIENCE = 90_000

export class Person {
  constructor(name) {
    this.name = name
    this.secret = Uint8Array.from(Buffer.from(keys[name], 'hex'))
    this.pubkey = getPublicKey(this.secret)
    this.sign = template => finalizeEvent(template, this.secret)
  }

  /** Connect, and log in unless told otherwise. */
  async enter({ login = true } = {}) {
    this.relay = new Relay(url)
    this.relay.publishTimeout = PATIENCE
    const challenged = new Promise(resolve => {
      this.relay.onauth = async template => {
        resolve()
        return this.sign(template)
      }
    })
    if (!login) this.relay.onauth = undefined
    await this.relay.connect()
    if (login) {
      await challenged
      assert.equal(await this.relay.auth(this.sign), '') // the same login: its OK
    }
    return this
  }

  event(kind, tags, content = '', created_at = Math.floor(Date.now() / 1000)) {
    return this.sign({ kind, tags, content, created_at })
  }

  /** Publish what must be taken. */
  async say(kind, tags, content, created_at) {
    const event = this.event(kind, tags, content, created_at)
    assert.equal(await this.relay.publish(event), '')
    return event
  }

  /** Why an event is refused. */
  async refused(event) {
    return this.relay.publish(event).then(
      () => assert.fail(`${this.name}'s event of kind ${event.kind} was taken`),
      error => error.message,
    )
  }

  /** Stored events; or `closed`, with the reason. */
  query(...filters) {
    return new Promise(resolve => {
      const events = []
      const sub = this.relay.subscribe(filters, {
        eoseTimeout: PATIENCE,
        onevent: event => events.push(event),
        oneose: () => {
          sub.close()
          resolve({ events, closed: null })
        },
        onclose: reason => resolve({ events, closed: reason }),
      })
    })
  }

  async contents(...filters) {
    const { events } = await this.query(...filters)
    return events.map(event => event.content)
  }

  /** A subscription past its EOSE: `got` fills with contents, `until` waits for one. */
  watch(...filters) {
    const got = []
    const waiting = new Map()
    return new Promise((resolve, reject) => {
      this.relay.subscribe(filters, {
        eoseTimeout: PATIENCE,
        onevent: event => {
          got.push(event.content)
          waiting.get(event.content)?.()
        },
        oneose: () => resolve({
          got,
          until: content => new Promise(found => {
            if (got.includes(content)) found()
            else waiting.set(content, found)
          }),
        }),
        onclose: reason => reject(new Error(`${this.name}'s subscription: ${reason}`)),
      })
    })
  }

  /** A number, or the reason of a CLOSED. */
  count(...filters) {
    return this.relay.count(filters, {}).catch(error => error.message)
  }

  leave() {
    this.relay.close()
  }
}

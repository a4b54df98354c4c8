// Records of an agent, as tests/conformance/memory.md defines them: [kind, tags, content].
import { createHash } from 'node:crypto'

const aman = (kind, label, d, payload, ts) => [
  kind,
  [['d', d], ['k', label], ['hk', 'tea'], ['v', '1'], ['ts', `${ts}`], ['h', 'tea']],
  JSON.stringify(payload),
]

export function tool(content, ts) {
  const payload = {
    history_key: 'tea', tool_name: 'weather', success: true, content, sender_id: null,
    group_id: 'tea', created_at: ts,
  }
  const digest = createHash('sha256').update(JSON.stringify(payload)).digest('hex')
  return aman(30095, 'aman_tool_history', `tea:${digest}`, payload, ts)
}

export const preference = (text, ts) =>
  aman(30093, 'aman_preference', 'tea:preference',
    { history_key: 'tea', preference: text, updated_at: ts }, ts)

export const groupMemory = (purpose, ts) => [
  30078,
  [['d', 'snowclaw:memory:group:tea'], ['h', 'tea']],
  JSON.stringify({ purpose, themes: ['oolong'], decisions: [['tea at four', ts]] }),
]

export const config = mode => [
  30078,
  [['d', 'snowclaw:config:global'], ['respond_mode', mode], ['context_history', '20']],
  JSON.stringify({ respond_mode: mode, context_history: 20 }),
]

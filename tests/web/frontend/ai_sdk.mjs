// Sends messages with the transport of the AI SDK, and reads the stream with its reader.
// Reads {url, id, messages, body, trigger, stopAfter} in each line of stdin, and writes
// {message, chunks, error}. With `stopAfter`, the answer is stopped when it has that text.
import {createInterface} from 'node:readline'
import {DefaultChatTransport, readUIMessageStream} from 'ai'

async function run(given) {
  const {url, id, messages, body, trigger = 'submit-message', stopAfter} = given
  const stopping = new AbortController()
  const transport = new DefaultChatTransport({api: url, body})
  const chunks = []
  let message = null, error = null
  try {
    const stream = await transport.sendMessages({
      chatId: id, messages, trigger, abortSignal: stopping.signal,
    })
    const observed = stream.pipeThrough(new TransformStream({
      transform(chunk, controller) {
        chunks.push(chunk)
        controller.enqueue(chunk)
      },
    }))
    const last = messages.at(-1)
    const continued = last.role === 'assistant' ? structuredClone(last) : undefined
    const states = readUIMessageStream({
      message: continued, stream: observed, onError: found => { error = found.message },
    })
    for await (const state of states) {
      message = state
      const text = state.parts.map(part => part.text ?? '').join('')
      if (stopAfter !== undefined && text.includes(stopAfter)) stopping.abort()
    }
  } catch (found) {
    error = found.message
  }
  return {message, chunks, error}
}

for await (const line of createInterface({input: process.stdin})) {
  console.log(JSON.stringify(await run(JSON.parse(line))))
}

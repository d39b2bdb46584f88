// Runs an agent of AG-UI's client, once for each of the given runs.
// Reads {url, threadId, state, messages, runs: [{messages, parameters, resume, stopAfter}]} in each
// line of stdin, and writes for each run {messages, state, events, interrupts, error}. With
// `stopAfter`, the run is stopped when it has sent that text.
import {createInterface} from 'node:readline'
import {HttpAgent, buildResumeArray} from '@ag-ui/client'

async function run(given) {
  const {url, threadId, state, messages: initialMessages, runs} = given
  const agent = new HttpAgent({url, threadId, initialState: state, initialMessages})
  const results = []
  for (const {messages = [], parameters = {}, resume, stopAfter} of runs) {
    const events = []
    let error = null
    agent.addMessages(messages)
    if (resume !== undefined) {
      const answers = agent.pendingInterrupts.map(each => [each.id, resume])
      parameters.resume = buildResumeArray(agent.pendingInterrupts, Object.fromEntries(answers))
    }
    try {
      await agent.runAgent(parameters, {
        onEvent: ({event}) => {
          events.push(event)
          if (stopAfter !== undefined && event.delta?.includes(stopAfter)) agent.abortRun()
        },
        onRunErrorEvent: ({event}) => { error = event.message },
      })
    } catch (found) {
      error ??= found.message
    }
    results.push(structuredClone({
      messages: agent.messages, state: agent.state, events, interrupts: agent.pendingInterrupts, error,
    }))
  }
  return results
}

for await (const line of createInterface({input: process.stdin})) {
  console.log(JSON.stringify(await run(JSON.parse(line))))
}

// A page with the `useChat` of the AI SDK, as an application would write it.
import {useState} from 'react'
import {createRoot} from 'react-dom/client'
import {useChat} from '@ai-sdk/react'
import {DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses} from 'ai'

function Call({part, decide}) {
  const name = part.type.slice('tool-'.length)
  return (
    <div className="tool">
      {name}({JSON.stringify(part.input)}): {part.state} {JSON.stringify(part.output)}
      {part.state === 'approval-requested' && [true, false].map(approved => (
        <button key={approved} onClick={() => decide({id: part.approval.id, approved})}>
          {approved ? 'Allow' : 'Deny'}
        </button>
      ))}
    </div>
  )
}

function Chat() {
  const [text, setText] = useState('')
  const {
    messages, sendMessage, regenerate, stop, addToolApprovalResponse, status, error,
  } = useChat({
    id: 'c1',
    resume: true,
    transport: new DefaultChatTransport({api: '/ai-sdk'}),
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  })
  const submit = event => {
    event.preventDefault()
    sendMessage({text})
    setText('')
  }
  return (
    <main data-status={status}>
      {messages.map(message => (
        <div key={message.id} className={message.role} id={message.id}>
          {message.parts.map((part, at) => {
            if (part.type === 'text') return <p key={at} className="text">{part.text}</p>
            if (part.type.startsWith('tool-')) return <Call key={at} part={part} decide={addToolApprovalResponse} />
            return null
          })}
        </div>
      ))}
      {error && <p className="error">{error.message}</p>}
      <button onClick={() => regenerate()}>Again</button>
      <button onClick={async () => {
        await stop()
        await fetch('/ai-sdk/c1/stream', {method: 'DELETE'})
      }}>Stop</button>
      <button onClick={() => sendMessage({text, messageId: messages[0].id})}>Replace the first</button>
      <form onSubmit={submit}>
        <input id="text" value={text} disabled={status !== 'ready' && status !== 'error'}
          onChange={event => setText(event.target.value)} />
      </form>
    </main>
  )
}

createRoot(document.getElementById('root')).render(<Chat />)

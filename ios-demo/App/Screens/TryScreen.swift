import AppModels
import AppParts
import SwiftUI

/// Asks one model what a person writes, while it is written.
struct TryScreen: View {
    private static let pause = Duration.milliseconds(250)

    @Bindable var model: TryModel
    @State private var editsSet = false
    @FocusState private var writing: Field?
    @Environment(\.scenePhase) private var phase

    /// What an answer depends on: where it changes, the model is asked again.
    private struct Asked: Equatable {
        let model: ShelvedModel.ID?
        let question: Question
        let sentences: [String]
        let hasOwnIndex: Bool?
        let isBehind: Bool
    }

    var body: some View {
        Cards(writing: $writing) {
            ForEach(model.parts, id: \.self) { part in
                switch part {
                case .input:
                    Card {
                        ModelPicker(title: "Model", models: model.models, selection: chosen)
                        if let prompts = model.chosen?.prompts, !prompts.isEmpty { PromptPicker(prompts: prompts, selection: prompt) }
                        if model.chosen?.takesOwnLabels ?? false {
                            Toggle("Labels of your own", isOn: $model.prefersOwn).frame(minHeight: Theme.target)
                        }
                        inputs
                    }
                case .answer: AnswerCard(model: model)
                case .caption: Timing(model: model)
                case .actions:
                    if let index = model.search.index { Card { IndexRows(index: index, search: model.search) } }
                    Button("Edit the sentences…", systemImage: "list.bullet.rectangle") { editsSet = true }
                        .frame(minHeight: Theme.target)
                }
            }
        }
        .navigationTitle("Try")
        // The answer is the largest on the screen.
        .navigationBarTitleDisplayMode(.inline)
        .sheet(isPresented: $editsSet) { SentencesScreen(search: model.search) }
        .task(id: asked) {
            await model.search.restore()
            // Whoever writes is waited for, so that not every letter is asked for.
            try? await Task.sleep(for: Self.pause)
            if !Task.isCancelled, phase != .background { model.ask() }
        }
        .onLeave(phase) { model.leave() }
        .onChange(of: model.warmMs) { _, median in
            if median != nil { sayAnswer() }
        }
    }

    private var asked: Asked {
        Asked(
            model: model.chosen?.id, question: model.question, sentences: model.search.sentences,
            hasOwnIndex: model.search.index?.isOwn, isBehind: phase == .background)
    }

    /// Says the answer once its time no longer changes.
    private func sayAnswer() {
        guard case .answered(let reply) = model.state, let chosen = model.chosen else { return }
        let answer = Words.answer(reply.answer, reply.question, nearest: model.search.found.first?.text)
        announce("\(answer). \(Words.caption(reply, warmMs: model.warmMs, chosen))")
    }

    private var chosen: Binding<ShelvedModel.ID> {
        Binding(get: { model.chosen?.id ?? "" }, set: { model.choose($0) })
    }

    private var prompt: Binding<String> {
        Binding(get: { model.prompt }, set: { model.choosePrompt($0) })
    }

    @ViewBuilder private var inputs: some View {
        switch model.chosen?.task {
        case .labels where model.own != nil:
            Input("Text", $model.first, $writing, .first)
            Input("Labels, with commas or lines between", $model.labels, $writing, .labels)
            Input("Template, with {} where a label is put", $model.template, $writing, .template)
            if model.chosen?.decidesEach ?? false {
                Toggle("Several may be true", isOn: $model.multiLabel).frame(minHeight: Theme.target)
            }
        case .labels, .values:
            Input("Text", $model.first, $writing, .first)
            Input("Second text, where the model takes one", $model.second, $writing, .second)
        case .value:
            Input("First text", $model.first, $writing, .first)
            Input("Second text", $model.second, $writing, .second)
        case .answer:
            Input("Question", $model.first, $writing, .first)
            Input("Passage", $model.second, $writing, .second)
        case .search: Input("What to look for", $model.first, $writing, .first)
        case .entities: Input("Text", $model.first, $writing, .first)
        case nil: EmptyView()
        }
    }
}

/// The fields of a screen.
enum Field: Hashable {
    case first
    case second
    case labels
    case template
}

/// A field for a text that grows with it.
struct Input: View {
    private let name: LocalizedStringKey
    @Binding private var text: String
    private let writing: FocusState<Field?>.Binding
    private let field: Field

    init(_ name: LocalizedStringKey, _ text: Binding<String>, _ writing: FocusState<Field?>.Binding, _ field: Field) {
        self.name = name
        _text = text
        self.writing = writing
        self.field = field
    }

    var body: some View {
        VStack(alignment: .leading, spacing: 4) {
            // The field has the name as its label; a reader of the screen would hear it twice.
            Text(name).font(.caption).foregroundStyle(.secondary).accessibilityHidden(true)
            TextField(name, text: $text, axis: .vertical)
                .lineLimit(1...8)
                .textFieldStyle(.roundedBorder)
                .focused(writing, equals: field)
                .accessibilityLabel(Text(name))
        }
        .id(field)
    }
}

/// The choice between the prompts of a model, and none.
private struct PromptPicker: View {
    let prompts: [String]
    @Binding var selection: String

    var body: some View {
        Picker("Prompt", selection: $selection) {
            ForEach([""] + prompts, id: \.self) { Text(verbatim: Words.prompt($0)).tag($0) }
        }
        .pickerStyle(.menu)
        .frame(minHeight: Theme.target)
    }
}

/// The answer, or what stands in its place.
private struct AnswerCard: View {
    let model: TryModel

    var body: some View {
        Card {
            switch model.state {
            case .idle(let missing): Text(verbatim: missing.map(Words.missing) ?? "").foregroundStyle(.secondary)
            case .opening: ProgressView("Opening the model…").frame(maxWidth: .infinity, minHeight: Theme.target)
            case .working: Working(progress: model.search.progress)
            case .failed(let sentence): Problem(sentence: sentence)
            case .answered(let reply):
                AnswerView(answer: reply.answer, question: reply.question, neighbours: model.search.found)
                if let limit = reply.cutAt { Notice(Words.cut(at: limit), systemImage: "scissors") }
                if !model.unusedPrompts.isEmpty { Notice(Words.unused(model.unusedPrompts)) }
            }
        }
        .animation(.default, value: model.state)
    }
}

private struct Working: View {
    let progress: (done: Int, all: Int)?

    var body: some View {
        if let progress {
            ProgressView(value: Double(progress.done), total: Double(max(progress.all, 1))) {
                Text("Embedding the sentences")
            } currentValueLabel: {
                Text(verbatim: "\(progress.done) / \(progress.all)").monospacedDigit()
            }
        } else {
            ProgressView("Computing…").frame(maxWidth: .infinity, minHeight: Theme.target)
        }
    }
}

/// How long the answer took, in one line.
private struct Timing: View {
    let model: TryModel

    var body: some View {
        if case .answered(let reply) = model.state, let chosen = model.chosen {
            Text(verbatim: Words.caption(reply, warmMs: model.warmMs, chosen))
                .font(.caption)
                .monospacedDigit()
                .foregroundStyle(.secondary)
                .frame(maxWidth: .infinity, alignment: .leading)
        }
    }
}

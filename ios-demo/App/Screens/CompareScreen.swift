import AppModels
import AppParts
import Charts
import SwiftUI

/// Two models on the same text, side by side: how long each takes, and how large it is.
struct CompareScreen: View {
    private static let pause = Duration.milliseconds(400)

    /// What a comparison depends on: where it changes, both are run again.
    private struct Asked: Equatable {
        let models: [ShelvedModel.ID]
        let first: String
        let second: String
        let isBehind: Bool
    }

    @Bindable var model: CompareModel
    @FocusState private var writing: Field?
    @Environment(\.scenePhase) private var phase
    @Environment(\.horizontalSizeClass) private var width
    @Environment(\.dynamicTypeSize) private var type

    var body: some View {
        Cards(writing: $writing) {
            ForEach(model.parts, id: \.self) { part in
                switch part {
                case .input: inputs
                case .answer: Headline(model: model)
                case .caption: Caption(model: model)
                case .actions:
                    Button(model.isRunning ? "Stop" : "Run both", systemImage: model.isRunning ? "stop.fill" : "play.fill") {
                        if model.isRunning { model.cancel() } else { model.run() }
                    }
                    .buttonStyle(.borderedProminent)
                    .frame(minHeight: Theme.target)
                case .sides: sides
                }
            }
        }
        .navigationTitle("Compare")
        .navigationBarTitleDisplayMode(.inline)
        .task(
            id: Asked(models: model.sides.map(\.id), first: model.first, second: model.second, isBehind: phase == .background)
        ) {
            // Whoever writes is waited for.
            try? await Task.sleep(for: Self.pause)
            if !Task.isCancelled, phase != .background { model.run() }
        }
        .onLeave(phase) { model.leave() }
        .onChange(of: model.verdict) { _, verdict in
            // It is there once its figures no longer change.
            if let verdict { announce("\(Words.headline(verdict)). \(Words.caption(verdict))") }
        }
    }

    private var inputs: some View {
        Card {
            ForEach(model.sides.indices, id: \.self) { place in
                ModelPicker(
                    title: place == 0 ? "First model" : "Second model", models: model.models,
                    selection: Binding(get: { model.sides[place].id }, set: { model.choose($0, for: place) }))
            }
            Input("Text", $model.first, $writing, .first)
            if model.takesTwo { Input("Second text, or the passage", $model.second, $writing, .second) }
        }
    }

    /// Beside each other where there is room, below each other where letters are large.
    @ViewBuilder private var sides: some View {
        let layout =
            width == .regular && !type.isAccessibilitySize
            ? AnyLayout(HStackLayout(alignment: .top, spacing: Theme.spacing)) : AnyLayout(VStackLayout(spacing: Theme.spacing))
        layout {
            ForEach(model.sides.indices, id: \.self) { place in
                SideCard(side: model.sides[place])
            }
        }
    }
}

/// How long the student takes, or what is needed for that.
private struct Headline: View {
    let model: CompareModel

    var body: some View {
        if let verdict = model.verdict {
            Text(verbatim: Words.headline(verdict))
                .font(.largeTitle.weight(.bold))
                .foregroundStyle(Theme.student)
                .frame(maxWidth: .infinity, alignment: .leading)
        } else if model.sides.isEmpty {
            Card { Text("Two models make a comparison: ship another one.") }
        } else if model.isRunning {
            Text("Measuring…").font(.title2).foregroundStyle(.secondary)
        } else {
            Text("Nothing measured yet").foregroundStyle(.secondary)
        }
    }
}

/// How long the other one takes beside it, in words and as bars.
private struct Caption: View {
    let model: CompareModel

    var body: some View {
        Card {
            if let verdict = model.verdict { Text(verbatim: Words.caption(verdict)).foregroundStyle(.secondary) }
            Chart {
                ForEach(model.sides.indices, id: \.self) { place in
                    let side = model.sides[place]
                    let time = side.medianMs.map { Formats.roundedMs($0) } ?? ""
                    BarMark(x: .value("Latency", side.medianMs ?? 0), y: .value("Model", "\(place + 1). \(side.model.name)"))
                        .foregroundStyle(side.model.model.hasRandomWeights ? Theme.reference : Theme.student)
                        .annotation(position: .trailing) { Text(verbatim: time).font(.caption).monospacedDigit() }
                        .accessibilityLabel(Text(verbatim: side.model.name))
                        .accessibilityValue(Text(verbatim: time))
                }
            }
            .chartXAxisLabel("Latency, ms")
            .frame(minHeight: 140)
            if model.isFinal { Text(verbatim: Words.medians(of: CompareModel.kept)).font(.caption).foregroundStyle(.secondary) }
        }
    }
}

private struct SideCard: View {
    let side: CompareModel.Side

    var body: some View {
        Card {
            Text(verbatim: Words.model(ModelName(side.model))).font(.headline)
            if let median = side.medianMs { Fact("Warm median", Formats.roundedMs(median)) }
            Fact("Size", Formats.megabytes(side.model.model.entry.bytes))
            switch side.trouble {
            case .failed(let sentence): Problem(sentence: sentence)
            case .missing(let what): Text(verbatim: Words.missing(what)).foregroundStyle(.secondary)
            case nil: EmptyView()
            }
            if let reply = side.reply {
                Fact("Tokens", "\(reply.tokens) / \(reply.length)")
                Divider()
                if case .embedding(let embedding) = reply.answer {
                    Fact("Numbers of the embedding", "\(embedding.count)")
                } else {
                    AnswerView(answer: reply.answer, question: reply.question)
                }
            }
        }
    }
}

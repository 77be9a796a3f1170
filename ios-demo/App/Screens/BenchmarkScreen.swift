import AppModels
import AppParts
import Charts
import SwiftUI
import UIKit

/// Measures a model, and leaves a record that a computer reads.
struct BenchmarkScreen: View {
    @Bindable var model: BenchmarkModel
    @Environment(\.scenePhase) private var phase

    var body: some View {
        Cards {
            Card {
                settings.disabled(model.isRunning)
                Button(model.isRunning ? "Stop" : "Measure", systemImage: model.isRunning ? "stop.fill" : "stopwatch") {
                    if model.isRunning { model.cancel() } else { model.start() }
                }
                .buttonStyle(.borderedProminent)
                .frame(minHeight: Theme.target)
            }
            StateCard(state: model.state)
            ForEach(model.records) { record in
                RecordCard(record: record) { await model.remove(record) }
            }
        }
        .navigationTitle("Benchmark")
        .navigationBarTitleDisplayMode(.inline)
        .task { await model.readRecords() }
        // What another screen computes would be measured too, and the system slows what is behind another app.
        .onLeave(phase) { model.cancel() }
        .onChange(of: model.isRunning) { _, isRunning in
            // A phone that sleeps measures nothing.
            UIApplication.shared.isIdleTimerDisabled = isRunning
        }
    }

    @ViewBuilder private var settings: some View {
        ModelPicker(
            title: "Model", models: model.models, selection: Binding(get: { model.chosen?.id ?? "" }, set: { model.choose($0) }))
        if let linked = model.chosen?.linked {
            if model.unitsOffered.count > 1 {
                Picker("Compute units", selection: $model.computeUnits) {
                    Text("The file's default").tag(String?.none)
                    ForEach(model.unitsOffered, id: \.self) { Text(verbatim: $0).tag(String?.some($0)) }
                }
                .frame(minHeight: Theme.target)
            }
            if linked.threads.count > 1 {
                Stepper(value: $model.threads, in: linked.threads) { Fact("Threads", "\(model.threads)") }
            }
        }
        Picker("Minutes", selection: $model.minutes) {
            ForEach(BenchmarkModel.minutesOffered, id: \.self) { Text(verbatim: "\(Int($0))").tag($0) }
        }
        .frame(minHeight: Theme.target)
        if model.tellsHeat { Toggle("Wait until the phone is cool", isOn: $model.waitsUntilCool).frame(minHeight: Theme.target) }
        Text("Lengths, in tokens").font(.caption).foregroundStyle(.secondary)
        ForEach(model.lengthsOffered, id: \.self) { length in
            Toggle(isOn: chosen(length)) { Text(verbatim: "\(length)").monospacedDigit() }.frame(minHeight: Theme.target)
        }
    }

    private func chosen(_ length: Int) -> Binding<Bool> {
        Binding(
            get: { model.lengths.contains(length) },
            set: { isOn in if isOn { model.lengths.insert(length) } else { model.lengths.remove(length) } })
    }
}

/// What a run does, and how it ended.
private struct StateCard: View {
    let state: BenchmarkModel.State

    var body: some View {
        switch state {
        case .idle: EmptyView()
        case .lacksLength: Card { Notice(String(localized: "Choose a length, at least one.")) }
        case .failed(let sentence): Card { Problem(sentence: sentence) }
        case .running(let progress): Card { RunProgressView(progress: progress) }
        case .ended(let progress, let record):
            // A record is shown with the others.
            if state.isProblem {
                Card { Problem(sentence: Words.progress(progress)) }
            } else if record == nil {
                Card { Notice(Words.progress(progress)) }
            }
        }
    }
}

/// How far a run is.
struct RunProgressView: View {
    let progress: RunProgress

    var body: some View {
        ProgressView(value: min(max(progress.done, 0), 1)) {
            Text(verbatim: Words.progress(progress))
        } currentValueLabel: {
            Text(verbatim: Formats.percent(progress.done)).monospacedDigit()
        }
        .tint(Theme.student)
    }
}

/// How fast each length is, and what else a record says.
private struct RecordCard: View {
    let record: RunRecord
    let remove: () async -> Void

    var body: some View {
        Card {
            Text(verbatim: Words.title(record)).font(.headline)
            Text(verbatim: Words.circumstances(record)).font(.callout).foregroundStyle(.secondary)
            Chart(record.lengths) { length in
                BarMark(x: .value("Length", "\(length.length)"), y: .value("Latency", length.latencies.p50 ?? 0))
                    .foregroundStyle(Theme.student)
                    .accessibilityLabel(Text(verbatim: Words.tokens(length.length)))
                    .accessibilityValue(Text(verbatim: length.latencies.p50.map { Formats.ms($0) } ?? ""))
            }
            .chartYAxisLabel("Median, ms")
            .frame(height: 140)
            ForEach(record.lengths) { Text(verbatim: Words.length($0)).monospacedDigit() }
            Divider()
            Fact("Runtime", Words.runtime(record))
            if record.textMs.isFinite { Fact("Real texts", Formats.ms(record.textMs)) }
            if record.tokenizeMs.isFinite { Fact("Tokenisation", Formats.ms(record.tokenizeMs)) }
            Fact("Opening the model", Formats.ms(record.loadMs))
            Fact("First run", Formats.ms(record.firstMs))
            if let peak = record.peakBytes { Fact("Most memory", Formats.megabytes(peak)) }
            if let operations = record.operations {
                Fact("Operations off the CPU, or in the delegate", "\(operations.delegated) / \(operations.all)")
            }
            HStack {
                ShareLink(item: record.file) { Label("Share the record", systemImage: "square.and.arrow.up") }
                Spacer()
                Button("Delete", systemImage: "trash", role: .destructive) { Task { await remove() } }.labelStyle(.iconOnly)
            }
            .frame(minHeight: Theme.target)
        }
    }
}

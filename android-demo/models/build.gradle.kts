import org.jetbrains.kotlin.gradle.dsl.JvmTarget

plugins {
    alias(libs.plugins.kotlin.jvm)
}

// Targets instead of a toolchain: Android Studio's JDK 21 compiles for 17, and nothing has to be downloaded.
kotlin {
    compilerOptions {
        jvmTarget.set(JvmTarget.JVM_17)
    }
}

java {
    sourceCompatibility = JavaVersion.VERSION_17
    targetCompatibility = JavaVersion.VERSION_17
}

sourceSets {
    // They are Maven's, see below.
    test { kotlin.setSrcDirs(emptyList<String>()) }
}

// Its tests need the students of `make apps-check`, and run there.
dependencies {
    api(project(":core"))
    api(libs.coroutines.core)
}

import org.jetbrains.kotlin.gradle.dsl.JvmTarget

plugins {
    alias(libs.plugins.android.application)
    alias(libs.plugins.kotlin.android)
    alias(libs.plugins.compose.compiler)
}

android {
    namespace = "pocketbert.app"
    compileSdk = 35

    defaultConfig {
        applicationId = "pocketbert.app"
        minSdk = 26
        targetSdk = 35
        versionCode = 1
        versionName = "0.1.0"
        testInstrumentationRunner = "androidx.test.runner.AndroidJUnitRunner"
        ndk {
            // Those that the runtimes come for.
            abiFilters += listOf("arm64-v8a", "x86_64")
        }
    }

    buildTypes {
        release {
            isMinifyEnabled = true
            isShrinkResources = true
            proguardFiles(getDefaultProguardFile("proguard-android-optimize.txt"), "rules.pro")
        }
    }

    buildFeatures {
        compose = true
    }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }

    sourceSets {
        getByName("main").kotlin.srcDir("src/main/kotlin")
        getByName("androidTest").kotlin.srcDir("src/androidTest/kotlin")
        // The tests of src/test are Robolectric's, and run by Maven.
        getByName("test").kotlin.setSrcDirs(emptyList<String>())
    }

    androidResources {
        // Weights hardly get smaller, and every byte of them is read at each start, to be compared with what was signed.
        noCompress += listOf("tflite", "pte")
    }

    packaging {
        jniLibs {
            // Mapped from the APK, at addresses that phones with pages of 16 KB need.
            useLegacyPackaging = false
        }
    }
}

kotlin {
    compilerOptions {
        jvmTarget.set(JvmTarget.JVM_17)
    }
}

dependencies {
    implementation(project(":core"))
    implementation(project(":models"))
    implementation(libs.coroutines.android)
    implementation(libs.compose.ui)
    implementation(libs.compose.foundation)
    implementation(libs.material3)
    implementation(libs.activity.compose)
    implementation(libs.core.ktx)
    implementation(libs.lifecycle.runtime)
    implementation(libs.litert)
    implementation(libs.executorch)
    implementation(libs.nativeloader)
    implementation(libs.fbjni)
    androidTestImplementation(libs.androidx.test.junit)
    androidTestImplementation(libs.androidx.test.runner)
}
